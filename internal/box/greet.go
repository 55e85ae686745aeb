//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/glovebox-dev/glovebox/internal/launch"
)

// Greet tells an agent in contained mode, over its fresh connection, what it is
// to be, and reads what it measured and not a byte more. It ends with ctx, or
// after HandshakeTimeout.
func Greet(ctx context.Context, c net.Conn, cfg *launch.Config) (launch.Hello, error) {
	var hello launch.Hello
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) }) //nolint:errcheck // it is closed on failure
	defer stop()
	line, err := json.Marshal(cfg)
	if err != nil {
		return hello, err
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

func greetError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("the agent did not answer in time")
	}
	return fmt.Errorf("the agent ended: %w", err)
}

// CheckHello refuses an agent in contained mode that is not confined as it was
// told to be.
func CheckHello(cfg *launch.Config, h launch.Hello) error {
	switch {
	case h.PID != 1:
		return errors.New("the agent is not the first process of a pid namespace")
	case !cfg.NoSeccomp && !h.Seccomp, cfg.RootCaps == 0 && !h.NoNewPrivs:
		return errors.New("the agent has no system call filter")
	case !cfg.NoLandlock && !cfg.MaybeLandlock && h.LandlockABI == 0:
		return errors.New("the agent has no Landlock domain")
	}
	return nil
}

// Commit tells the agent of a kept sandbox that it may outlive its launcher.
func Commit(c net.Conn) error {
	_, err := c.Write([]byte("\n"))
	return errors.Join(err, c.Close())
}
