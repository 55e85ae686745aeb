//go:build linux

package keeper_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/keeper"
)

// raw is a connection to the keeper that says what it likes.
type raw struct {
	*net.UnixConn
	t *testing.T
}

func (s *store) raw(t *testing.T) *raw {
	t.Helper()
	d, err := os.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/keeper.sock", d.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(soon))
	return &raw{c, t}
}

func (r *raw) send(size int, body string, fds ...int) {
	r.t.Helper()
	head := binary.BigEndian.AppendUint32(nil, uint32(size))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := r.WriteMsgUnix(append(head, body...), oob, nil); err != nil {
		r.t.Fatal(err)
	}
}

// answer is the kind of what the keeper says, "closed" when it says nothing.
func (r *raw) answer() string {
	r.t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "closed"
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(r, body); err != nil {
		r.t.Fatal(err)
	}
	var a struct{ Kind backend.Kind }
	if err := json.Unmarshal(body, &a); err != nil {
		r.t.Fatal(err)
	}
	return string(a.Kind)
}

func descriptorsOf(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Logf("descriptors of %d: %v", pid, err) // of a process that is not to be looked at, unless by root
		return 0
	}
	return len(entries)
}

func TestControl_hostile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	host, _ := agent(t, says("calm"))
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{host}})
	pid := s.pids(t)[0]
	before := descriptorsOf(t, pid)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	hold := func(id string) string {
		return fmt.Sprintf(`{"protocol":1,"op":"hold","id":%q,"held":{"id":%q,"proc":{"pid":%d,"start":%d},"stream":{}}}`, id, id, sb.proc.PID, sb.proc.Start)
	}
	for _, tt := range []struct {
		name, body string
		size       int
		fds        []int
		want       string
	}{
		{"too large", "", 4<<20 + 1, nil, "invalid"},
		{"as large as can be said", "x", 0xffffffff, nil, "invalid"},
		{"no JSON", "xxxx", 0, nil, "invalid"},
		{"nothing", "", 0, nil, "invalid"},
		{"deep", strings.Repeat("[", 100000), 0, nil, "invalid"},
		{"null", "null", 0, nil, "conflict"},
		{"another protocol", `{"protocol":2,"op":"holds"}`, 0, nil, "conflict"},
		{"unknown operation", `{"protocol":1,"op":"x"}`, 0, nil, "invalid"},
		{"commit of nothing", `{"protocol":1,"op":"commit"}`, 0, nil, "invalid"},
		{"unknown ID", `{"protocol":1,"op":"network","held":{"id":"nobody"}}`, 0, nil, "not_found"},
		{"rules for none", `{"protocol":1,"op":"network"}`, 0, nil, "invalid"},
		{"release of an unknown ID", `{"protocol":1,"op":"release","id":"../../x"}`, 0, nil, ""},
		{"hold of nothing", `{"protocol":1,"op":"hold"}`, 0, nil, "invalid"},
		{"hold with nothing in it", `{"protocol":1,"op":"hold","held":{}}`, 0, []int{fd}, "invalid"},
		{"no descriptors", hold("stwo"), 0, nil, "invalid"},
		{"a descriptor of the wrong kind", hold("stwo"), 0, []int{fd}, "invalid"},
		{"too many of them", hold("stwo"), 0, []int{fd, fd, fd}, "invalid"},
		{"far too many", hold("stwo"), 0, []int{fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd}, "invalid"},
		{"descriptors that nobody asked for", `{"protocol":1,"op":"holds","id":"sone"}`, 0, []int{fd}, "invalid"},
		{"another's ID", hold("sone"), 0, []int{fd}, "conflict"},
		{"a path for an ID", hold("../sone"), 0, []int{fd}, "invalid"},
	} {
		r := s.raw(t)
		size := tt.size
		if size == 0 {
			size = len(tt.body)
		}
		r.send(size, tt.body, tt.fds...)
		if got := r.answer(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		r.Close()
	}
	// Half a message, and a hold whose maker says something else than commit.
	half := s.raw(t)
	half.send(100, `{"protocol"`)
	half.Close()
	a, b := pair(t)
	other := s.raw(t)
	other.send(len(hold("stwo")), "", int(a.Fd()))
	if err := os.Mkdir(s.dir+"/run/stwo", 0o700); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(other, hold("stwo"))
	if got := other.answer(); got != "" {
		t.Fatalf("hold: %q", got)
	}
	a.Close()
	other.send(2, "{}")
	if got := other.answer(); got != "closed" {
		t.Errorf("no commit: %q", got)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("its stream: %d %v", n, err)
	}
	// Those who say nothing do not keep others out.
	var silent []*raw
	for range 50 {
		silent = append(silent, s.raw(t))
	}
	if got, err := get(t, sb.client(t), "/"); got != "calm" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if ok, err := s.k.Holds(t.Context(), sb.id); !ok || err != nil {
		t.Errorf("Holds: %v %v", ok, err)
	}
	for _, r := range silent {
		r.Close()
	}
	if before > 0 {
		// The stream's one other user has come meanwhile.
		eventually(t, "no descriptor is left", func() bool { return descriptorsOf(t, pid) <= before+2 })
	}
	sb.kill()
}
