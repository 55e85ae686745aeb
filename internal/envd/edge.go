package envd

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// maxErrorBody bounds what is read of an answer that is an error.
const maxErrorBody = 64 << 10

// edge adds what every request carries, and turns answers to RPCs that are no
// RPC answers (those of proxies, and of envd's token check) into a
// *statusError, since connect drops their bodies.
type edge struct {
	rt      http.RoundTripper
	headers http.Header
	token   string
}

func (e *edge) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(e.headers) > 0 || e.token != "" {
		req = req.Clone(req.Context())
		maps.Copy(req.Header, e.headers)
		if e.token != "" {
			req.Header.Set(wire.HeaderAccessToken, e.token)
		}
	}
	res, err := e.rt.RoundTrip(req)
	if err != nil || res.StatusCode == http.StatusOK || !isRPC(req) {
		return res, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	var coded struct {
		Code any `json:"code"`
	}
	_ = json.Unmarshal(body, &coded)
	if _, ok := coded.Code.(string); ok && jsonType(res.Header) {
		res.Body = io.NopCloser(bytes.NewReader(body))
		return res, nil
	}
	return nil, newStatusError(res, body)
}

func isRPC(req *http.Request) bool {
	t := req.Header.Get("Content-Type")
	return t == "application/proto" || strings.HasPrefix(t, "application/connect+")
}

func jsonType(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "application/json")
}

// statusError is an HTTP answer that is an error.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("HTTP status %d: %s", e.status, e.message)
}

// newStatusError reads E2B's {"code", "message"} or plain text from body.
func newStatusError(res *http.Response, body []byte) *statusError {
	var m struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &m) != nil || m.Message == "" {
		m.Message = string(body)
	}
	return &statusError{status: res.StatusCode, message: printable(m.Message)}
}

// responseError is newStatusError for an answer whose body is not yet read.
// It closes the body.
func responseError(res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	_ = res.Body.Close()
	return newStatusError(res, body)
}

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

func octal(m fs.FileMode) string { return strconv.FormatUint(uint64(m.Perm()), 8) }

// codec is connect's binary codec with a bound on the elements of a message:
// an empty entry is two bytes on the wire and some hundred in memory.
type codec struct{}

// maxFields is the number of top-level fields one message may have, more than
// a sandbox's default number of inodes.
const maxFields = 1 << 17

func (codec) Name() string { return "proto" }

func (codec) Marshal(m any) ([]byte, error) { return codec{}.MarshalAppend(nil, m) }

func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", m)
	}
	return proto.MarshalOptions{}.MarshalAppend(b, msg)
}

func (codec) Unmarshal(b []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", m)
	}
	if len(b) > 2*maxFields {
		if err := boundFields(b); err != nil {
			return err
		}
	}
	return proto.Unmarshal(b, msg)
}

func boundFields(b []byte) error {
	for n := 0; len(b) > 0; n++ {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		value := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if value < 0 {
			return protowire.ParseError(value)
		}
		if n >= maxFields {
			return fmt.Errorf("a message of more than %d elements", maxFields)
		}
		b = b[tag+value:]
	}
	return nil
}
