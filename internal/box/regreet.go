//go:build linux

package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// maxStale bounds what a copy of an agent may still say of its former
// connection: what that had ready to be sent.
const maxStale = 32 << 20

// Regreet takes up a copy of an agent over its fresh connection, as Greet does
// a new one, and tells it what must be its own. cfg is what a new one would
// have been told.
func Regreet(ctx context.Context, c net.Conn, keys wire.Seam, cfg *launch.Config) (launch.Hello, error) {
	var hello launch.Hello
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) }) //nolint:errcheck // it is closed on failure
	defer stop()
	line, err := json.Marshal(launch.Renewal{
		Protocol: launch.Protocol, DeadlineNS: cfg.DeadlineNS, Env: cfg.Env, Token: cfg.Token,
		LimitMemory: cfg.LimitMemory, LimitCPUs: cfg.LimitCPUs,
	})
	if err != nil {
		return hello, err
	}
	// In one piece: nobody else writes here, and a pipe takes that much at once.
	if _, err := c.Write([]byte(keys.Take + "\n")); err != nil {
		return hello, greetError(ctx, err)
	}
	if err := skipTo(c, []byte("\n"+keys.Answer+"\n")); err != nil {
		return hello, greetError(ctx, err)
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		return hello, greetError(ctx, err)
	}
	answer, err := launch.ReadExactly(c)
	if err != nil {
		return hello, greetError(ctx, err)
	}
	if err := json.Unmarshal(answer, &hello); err != nil {
		return hello, fmt.Errorf("the agent's hello: %s", Sanitize(string(answer)))
	}
	if hello.Error != "" {
		return hello, fmt.Errorf("the agent ended: %s", Sanitize(hello.Error))
	}
	if !stop() {
		return hello, ctx.Err()
	}
	return hello, CheckHello(cfg, hello)
}

// skipTo reads what comes before mark, and mark. The other side says nothing
// after it until it is answered.
func skipTo(c net.Conn, mark []byte) error {
	buf := make([]byte, 64<<10)
	have, seen := 0, 0
	for seen < maxStale {
		n, err := c.Read(buf[have:])
		have, seen = have+n, seen+n
		if i := bytes.Index(buf[:have], mark); i >= 0 {
			if i+len(mark) != have {
				return errors.New("the agent did not wait")
			}
			return nil
		}
		if err != nil {
			return err
		}
		keep := min(have, len(mark)-1)
		copy(buf, buf[have-keep:have])
		have = keep
	}
	return errors.New("the agent does not come to an end")
}
