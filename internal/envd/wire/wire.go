// Package wire holds what the envd client and the agent agree on beyond E2B's
// own messages, and the generated types of both.
//
//go:generate buf generate
package wire

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Names on the wire beside E2B's own. E2B's envd ignores the headers and does
// not send the trailer.
const (
	// HeaderLimits carries a gloveboxv1.Limits (Pack) on process.Process/Start.
	HeaderLimits = "Glovebox-Limits"
	// HeaderCommand is the agent's answer to Start and Connect: the command's
	// ID, for gloveboxv1.Sandbox/Attach.
	HeaderCommand = "Glovebox-Command"
	// TrailerEnd carries a gloveboxv1.End (Pack) at the end of Start and
	// Connect streams.
	TrailerEnd = "Glovebox-End"
	// DialPath opens a connection to a loopback port inside: POST with query
	// port=N; the request's body goes to the port, the answer's comes from it.
	DialPath = "/glovebox/dial"

	// HeaderAccessToken, HeaderKeepalive are E2B's.
	HeaderAccessToken = "X-Access-Token"
	HeaderKeepalive   = "Keepalive-Ping-Interval"
	// HeaderMetadata starts the name of each upload header that becomes file
	// metadata.
	HeaderMetadata = "X-Metadata-"
	// HeaderMode carries a file's permission bits (octal) on POST /files.
	HeaderMode = "Glovebox-Mode"

	// EnvdVersion is the E2B envd whose behaviour the agent follows.
	EnvdVersion = "0.6.13"
	// HeaderEnvdVersion is E2B's, on the answer to POST /init.
	HeaderEnvdVersion = "X-Envd-Version"
)

// Pack encodes m for a header.
func Pack(m proto.Message) string {
	b, err := proto.Marshal(m)
	if err != nil {
		return ""
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// maxHeader bounds what Unpack takes.
const maxHeader = 64 << 10

// Unpack decodes a header that Pack made into m.
func Unpack(s string, m proto.Message) error {
	if len(s) > maxHeader {
		return fmt.Errorf("wire: header of %d bytes", len(s))
	}
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	return proto.Unmarshal(b, m)
}
