package dockerfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

func (p *parser) copy(l line, word, rest string) error {
	c := &Copy{}
	for strings.HasPrefix(rest, "--") {
		flag, after, _ := strings.Cut(rest, " ")
		rest = strings.TrimSpace(after)
		if err := p.copyFlag(c, word, flag); err != nil {
			return err
		}
	}
	var words []string
	if !strings.HasPrefix(rest, "[") || json.Unmarshal([]byte(rest), &words) != nil {
		var err error
		if words, err = split(rest); err != nil {
			return err
		}
	}
	if len(words) < 2 {
		return fmt.Errorf("%s takes sources and a destination", word)
	}
	for i, w := range words {
		var err error
		if words[i], err = p.expand(w); err != nil {
			return err
		}
	}
	dest := words[len(words)-1]
	if dest == "" {
		return errors.New("the destination is empty")
	}
	c.Dest = p.resolve(dest)
	if c.Dest != "/" && (strings.HasSuffix(dest, "/") || dest == "." || strings.HasSuffix(dest, "/.")) {
		c.Dest += "/"
	}
	for _, src := range words[:len(words)-1] {
		if err := c.source(word, src); err != nil {
			return err
		}
	}
	s := p.step(l)
	s.Copy, s.User = c, "" // files belong to root whoever runs commands
	p.file.Steps = append(p.file.Steps, s)
	return nil
}

func (c *Copy) source(word, src string) error {
	if strings.Contains(src, "://") || strings.HasPrefix(src, "git@") {
		return fmt.Errorf("%s of an address is not supported; RUN curl fetches what the registries' allowlist allows", word)
	}
	// Security: the context is all of the host that a Dockerfile may name.
	clean := path.Clean(strings.TrimLeft(src, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(src, 0) {
		return fmt.Errorf("%q leaves the context", src)
	}
	if _, err := path.Match(clean, ""); err != nil {
		return fmt.Errorf("%q is no pattern", src)
	}
	if word == "ADD" {
		for _, ext := range []string{".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"} {
			if strings.HasSuffix(clean, ext) {
				return errors.New("ADD would unpack the archive, which is not supported; COPY it and RUN tar")
			}
		}
	}
	c.Sources = append(c.Sources, clean)
	return nil
}

func (p *parser) copyFlag(c *Copy, word, flag string) error {
	name, value, _ := strings.Cut(flag, "=")
	value, err := p.expand(value)
	if err != nil {
		return err
	}
	switch name {
	case "--chown":
		if value == "" || strings.ContainsAny(value, " /") {
			return fmt.Errorf("%q is no owner", value)
		}
		c.Owner = value
	case "--chmod":
		mode, err := strconv.ParseUint(value, 8, 32)
		if err != nil || mode == 0 || mode > 0o7777 {
			return fmt.Errorf("%q is no mode in octal", value)
		}
		c.Mode = uint32(mode)
	default:
		return fmt.Errorf("%s %s is not supported", word, name)
	}
	return nil
}
