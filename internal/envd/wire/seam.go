package wire

import "encoding/hex"

// SeamPath tells an agent that has but one byte stream how it can be taken up
// anew in the middle of it: POST with a Seam as JSON. A later one replaces it.
const SeamPath = "/glovebox/seam"

// Seam is the two secrets of a snapshot. A copy of the agent wakes up at a new
// stream whose first bytes are Take and a newline. It then drops the connection
// that it remembers, says Answer and a newline after whatever it had said
// before, and awaits a launch.Renewal as a line.
//
// Security: nobody but the owner of the stream knows them, so that nothing a
// program prints can be taken for them.
type Seam struct {
	Take   string `json:"take"`
	Answer string `json:"answer"`
}

// seamSize is the length of each secret.
const seamSize = 64

// Valid tells whether both are 32 bytes in hexadecimal, and differ.
func (s Seam) Valid() bool {
	for _, t := range []string{s.Take, s.Answer} {
		if _, err := hex.DecodeString(t); err != nil || len(t) != seamSize {
			return false
		}
	}
	return s.Take != s.Answer
}
