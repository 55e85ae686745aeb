package egress

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxSecret bounds a secret's bytes.
const maxSecret = 64 << 10

// Check tells what of spec's network this package could not give, before there
// is a sandbox: rules, and secrets that are not there. Errors are ErrInvalid,
// name the field, and hold no secret.
func Check(spec backend.Spec) error {
	if err := spec.Network.Validate(); err != nil {
		return err
	}
	_, err := Secrets(spec)
	return err
}

// Secrets are the secrets that spec names, for a Proxy in a process that could
// not resolve them (Options.Secrets).
func Secrets(spec backend.Spec) (map[backend.SecretRef]string, error) {
	named := map[backend.SecretRef]string{}
	var o Options
	for i, s := range spec.Secrets {
		v, err := o.reveal(fmt.Sprintf("secrets[%d]", i), s)
		if err != nil {
			return nil, err
		}
		named[s] = v
	}
	if _, err := injections(spec.Network, o); err != nil {
		return nil, err
	}
	for i, h := range spec.Network.Inject {
		v, err := o.reveal(fmt.Sprintf("network.inject[%d].secret", i), h.Secret)
		if err != nil {
			return nil, err
		}
		named[h.Secret] = v
	}
	if u := spec.Network.Upstream; u != nil && u.Secret != "" {
		v, err := o.reveal("network.upstream.secret", u.Secret)
		if err != nil {
			return nil, err
		}
		named[u.Secret] = v
	}
	return named, nil
}

// injections resolves the secrets of n's headers.
func injections(n backend.Network, o Options) ([]injection, error) {
	var out []injection
	for i, h := range n.Inject {
		field := fmt.Sprintf("network.inject[%d]", i)
		value, err := o.reveal(field+".secret", h.Secret)
		if err != nil {
			return nil, err
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return nil, secretError(field+".secret", errors.New("the secret cannot be a header's value"))
		}
		for _, r := range compile(field, []backend.Rule{h.Rule}) {
			out = append(out, injection{rule: r, header: h.Header, value: value})
		}
	}
	return out, nil
}

func secretError(field string, err error) error {
	return &backend.Error{Op: "network", Kind: backend.ErrInvalid, Field: field, Err: err}
}

// reveal resolves a reference. One line end is not part of a file's secret.
func (o Options) reveal(field string, ref backend.SecretRef) (string, error) {
	if o.Secrets != nil {
		v, ok := o.Secrets(ref)
		if !ok {
			return "", secretError(field, errors.New("a secret that was not handed over"))
		}
		return v, nil
	}
	kind, what, _ := strings.Cut(string(ref), ":")
	var value string
	switch {
	case kind == "env" && what != "":
		v, ok := os.LookupEnv(what)
		if !ok {
			return "", secretError(field, fmt.Errorf("variable %s is not set", what))
		}
		value = v
	case kind == "file" && strings.HasPrefix(what, "/"):
		v, err := readSecret(what)
		if err != nil {
			return "", secretError(field, err)
		}
		value = v
	default:
		// Security: it may be the secret itself, put in the wrong place.
		return "", secretError(field, errors.New("a secret is named as env:NAME or file:/path"))
	}
	if value == "" || len(value) > maxSecret {
		return "", secretError(field, fmt.Errorf("the secret is empty or larger than %d bytes", maxSecret))
	}
	return value, nil
}

func readSecret(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read side
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+2))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}
