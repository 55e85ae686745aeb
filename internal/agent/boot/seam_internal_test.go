//go:build linux

package boot

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// pipes are a connection over two pipes, as the agent's and as its owner's.
func pipes(t *testing.T) (inside, outside *stdio) {
	t.Helper()
	inR, inW, err := os.Pipe()
	outR, outW, oerr := os.Pipe()
	if err := errors.Join(err, oerr); err != nil {
		t.Fatal(err)
	}
	inside, outside = &stdio{in: inR, out: outW}, &stdio{in: outR, out: inW}
	t.Cleanup(func() { outside.Close(); inside.Close() })
	return inside, outside
}

// borrowed is a connection that is taken away from who uses it.
type borrowed struct {
	*stdio
	ended chan struct{} // closed when it is read no more
	once  sync.Once
}

func (b *borrowed) Read(p []byte) (int, error) {
	n, err := b.stdio.Read(p)
	if err != nil {
		b.once.Do(func() { close(b.ended) })
	}
	return n, err
}

func (b *borrowed) Close() error { return nil }

func (b *borrowed) cut() {
	b.stdio.in.SetReadDeadline(time.Unix(1, 0))
	<-b.ended
	b.stdio.in.SetReadDeadline(time.Time{})
}

// client calls over c as an owner does.
func client(c net.Conn) *http.Client {
	once := make(chan net.Conn, 1)
	once <- c
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p, DialContext: func(context.Context, string, string) (net.Conn, error) { return <-once, nil }}}
}

// TestSeam_isTakenOver in the middle of what the former owner was saying: from
// then on the agent is the new one's alone.
func TestSeam_isTakenOver(t *testing.T) {
	t.Parallel()
	r, err := spawn.New(spawn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	srv, err := agent.New(agent.Options{Reaper: r, Env: map[string]string{"A": "1", "B": "1"}, Token: "old"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	inside, outside := pipes(t)
	done := make(chan error, 1)
	go func() {
		done <- newSeam(inside).serve(srv, func() error {
			_, err := inside.Write([]byte(`{"pid":7}` + "\n"))
			return err
		})
	}()
	call := func(c *http.Client, method, path, token, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(wire.HeaderAccessToken, token)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(data)
	}
	cut := &borrowed{stdio: outside, ended: make(chan struct{})}
	first := client(cut)
	keys := wire.Seam{Take: strings.Repeat("a1", 32), Answer: strings.Repeat("b2", 32)}
	told, _ := json.Marshal(keys)
	if code, _ := call(first, http.MethodPost, wire.SeamPath, "", string(told)); code != http.StatusUnauthorized {
		t.Errorf("without the token: %d", code)
	}
	for _, bad := range []string{"{}", `{"take":"x","answer":"y"}`, strings.ReplaceAll(string(told), "b2", "a1")} {
		if code, _ := call(first, http.MethodPost, wire.SeamPath, "old", bad); code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, code)
		}
	}
	if code, _ := call(first, http.MethodPost, wire.SeamPath, "old", string(told)); code != http.StatusNoContent {
		t.Fatalf("told: %d", code)
	}
	cut.cut() // the former owner reads no more
	// Half a frame, and in the same piece the new owner.
	if _, err := outside.out.Write([]byte("\x00\x00\x40\x00" + keys.Take + "\n")); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(outside.in)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == keys.Answer+"\n" {
			break
		}
	}
	renewal, _ := json.Marshal(launch.Renewal{Protocol: launch.Protocol, Token: "new", Env: map[string]string{"B": "2"}, DeadlineNS: int64(time.Minute)})
	if _, err := outside.Write(append(renewal, '\n')); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || line != `{"pid":7}`+"\n" {
		t.Fatalf("%q %v", line, err)
	}
	second := client(outside)
	if code, _ := call(second, http.MethodGet, "/envs", "old", ""); code != http.StatusUnauthorized {
		t.Errorf("the old token: %d", code)
	}
	code, env := call(second, http.MethodGet, "/envs", "new", "")
	if code != http.StatusOK || !strings.Contains(env, `"A":"1"`) || !strings.Contains(env, `"B":"2"`) {
		t.Errorf("%d %s", code, env)
	}
	outside.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
