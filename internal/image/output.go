package image

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var newlyInstalled = regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`)

// keepLines is how much of a build's output an error can quote.
const keepLines = 60

// outputReader makes progress of what mmdebstrap and apt say, and keeps the
// end of it for errors.
type outputReader struct {
	report func(Progress)
	now    Progress
	last   []string
}

// read reads until the end of r, which comes when the last process that
// belongs to the build has ended.
func (o *outputReader) read(r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	sc.Split(scanAnyLine)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" {
			continue
		}
		o.last = append(o.last, line)
		if len(o.last) > keepLines {
			o.last = slices.Delete(o.last, 0, len(o.last)-keepLines)
		}
		if o.line(line) {
			o.report(o.now)
		}
	}
	_, _ = io.Copy(io.Discard, r) // whatever was too long for a line
}

// scanAnyLine splits at line feeds and carriage returns.
func scanAnyLine(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// line takes one line in and tells whether there is something new to show.
func (o *outputReader) line(line string) bool {
	if m := newlyInstalled.FindStringSubmatch(line); m != nil {
		n, err := strconv.Atoi(m[1])
		if err == nil {
			o.now.Total += n
		}
		return false
	}
	f := strings.Fields(line)
	switch {
	case strings.HasPrefix(line, "I: running apt-get update"):
		o.now.Phase, o.now.Item = "reading the archive's index", ""
	case strings.HasPrefix(line, "I: creating tarball"):
		o.now.Phase, o.now.Item = "packing", ""
	case strings.HasPrefix(line, "Get:") && len(f) > 4:
		o.now.Phase, o.now.Item = "downloading", f[4]
	case strings.HasPrefix(line, "Unpacking ") && len(f) > 1:
		o.now.Phase, o.now.Item = "installing", bare(f[1])
	case strings.HasPrefix(line, "Setting up ") && len(f) > 2:
		o.now.Phase, o.now.Item = "installing", bare(f[2])
		o.now.Done++
	default:
		return false
	}
	return true
}

// bare is a package's name without its architecture.
func bare(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return name
}

// failures are the lines that say why a build failed.
func (o *outputReader) failures() string {
	var out []string
	for _, l := range o.last {
		// The last one says no more than that an earlier one failed.
		if strings.HasPrefix(l, "E:") || strings.HasPrefix(l, "Err:") || strings.Contains(strings.ToLower(l), "error") || strings.Contains(l, "failed: ") {
			out = append(out, l)
		}
	}
	if len(out) == 0 {
		out = o.last
	}
	return strings.Join(out[max(0, len(out)-5):], "; ")
}
