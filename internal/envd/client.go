// Package envd is the client of E2B's envd protocol, which the agent in every
// local sandbox and E2B's own envd speak. Over the agent it also uses the
// glovebox service, which says why a command ended, keeps its output and
// dials ports; over a real envd it does without.
//
// Everything that arrives comes from where untrusted code runs: sizes, names,
// numbers and the order of events are checked, and what does not fit ends the
// call with an error of kind ErrLost that says "protocol".
package envd

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1/gloveboxv1connect"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
)

const (
	maxUnary  = 16 << 20 // bytes of one answer
	maxStream = 4 << 20  // bytes of one message of a stream
	// callTimeout bounds calls that answer at once, so that an agent that
	// stays silent cannot hold a caller who gave no deadline.
	callTimeout = 2 * time.Minute
	// DefaultGrace is Options.Grace when it is zero.
	DefaultGrace = 5 * time.Second
)

// Options says how to reach one sandbox and what holds for its commands. Its
// functions are called concurrently. It is not changed after New.
type Options struct {
	// BaseURL is the scheme and host of all requests; "" is http://sandbox.
	BaseURL string
	// Sandbox and Backend are named in errors.
	Sandbox, Backend string
	// AccessToken is E2B's X-Access-Token; "" sends none.
	AccessToken string
	// User is the account that commands and file calls use when they name
	// none; "" leaves it to the server.
	User string
	// Headers are added to every request, for proxies that route by them.
	Headers http.Header
	// Env is merged under each command's environment.
	Env map[string]string
	// EnvdVersion is the version of E2B's envd on the other side. When it is
	// set the server is not asked for extensions; "" finds out.
	EnvdVersion string

	// Extended says that the server is known to have the glovebox service, so
	// that it is not asked.
	Extended bool

	// Output bounds each output stream of each command in bytes, 0 not at
	// all. KillOnOutput kills at the bound instead of dropping what is over it.
	Output       int64
	KillOnOutput bool
	// CPUTime bounds each command's CPU time where it names none; 0 is none.
	CPUTime time.Duration

	// Judge amends an Exit with evidence from outside the sandbox before Wait
	// returns it. Its context ends after ten seconds. May be nil.
	Judge func(ctx context.Context, exit *backend.Exit)
	// Lost is asked what became of the sandbox when a connection to it breaks
	// or cannot be made, or the client was closed. What it returns is reported
	// in place of err, which has kind ErrLost, ErrUnavailable or ErrClosed; nil
	// leaves err. May be nil.
	Lost func(err error) error
	// Died is asked first when a connection breaks under a command: an Exit that
	// it knows, since the sandbox was killed from outside at one of its limits,
	// is the command's. May be nil.
	Died func() (backend.Exit, bool)
	// Grace is how long past a command's own timeout its end may take before
	// Overdue is called, time spent in the caller's writers not counted; 0 is
	// DefaultGrace.
	Grace time.Duration
	// Overdue kills a command from outside the sandbox. When it returns nil
	// the command's reason is ReasonTimeout, else its error is reported. May
	// be nil: the command is then ErrLost.
	Overdue func(ctx context.Context, commandID string) error
}

// The kinds of servers.
const (
	unknown  int32 = iota
	extended       // serves the glovebox service
	plain          // E2B's own
)

// Client drives one sandbox. It is safe for concurrent use. The caller closes
// it. A context given to a call bounds that call; what Start, Attach and
// DialContext return lives until it ends or the client is closed, whereas an
// opened file is read under the context it was opened with, so that a silent
// sandbox cannot hold its reader.
type Client struct {
	opts    Options
	rt      http.RoundTripper
	http    *http.Client
	proc    processconnect.ProcessClient
	streams processconnect.ProcessClient // with the limit of streams
	fs      filesystemconnect.FilesystemClient
	watches filesystemconnect.FilesystemClient
	box     gloveboxv1connect.SandboxClient
	attach  gloveboxv1connect.SandboxClient
	server  atomic.Int32

	mu     sync.Mutex
	closed bool
	next   uint64
	calls  map[uint64]context.CancelCauseFunc
	wg     sync.WaitGroup // the client's goroutines, under mu while it grows
}

var (
	errClosed   = errors.New("the client is closed")
	errNoAnswer = errors.New("no answer within " + callTimeout.String())
)

// New returns a client that sends its requests through rt. It does no I/O. A
// *Transport is closed with the client; any other rt stays the caller's.
func New(rt http.RoundTripper, opts Options) *Client {
	if opts.BaseURL == "" {
		opts.BaseURL = "http://sandbox"
	}
	opts.BaseURL = strings.TrimSuffix(opts.BaseURL, "/")
	if opts.Grace <= 0 {
		opts.Grace = DefaultGrace
	}
	c := &Client{opts: opts, rt: rt, calls: map[uint64]context.CancelCauseFunc{}}
	if opts.Extended {
		c.server.Store(extended)
	}
	if opts.EnvdVersion != "" {
		c.server.Store(plain)
	}
	c.http = &http.Client{
		Transport: &edge{rt: rt, headers: opts.Headers, token: opts.AccessToken},
		// Security: a redirect would carry the token wherever the sandbox says.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	common := connect.WithClientOptions(
		connect.WithCodec(codec{}),
		connect.WithAcceptCompression("gzip", nil, nil),
	)
	unary := connect.WithClientOptions(common, connect.WithReadMaxBytes(maxUnary))
	stream := connect.WithClientOptions(common, connect.WithReadMaxBytes(maxStream))
	c.proc = processconnect.NewProcessClient(c.http, opts.BaseURL, unary)
	c.streams = processconnect.NewProcessClient(c.http, opts.BaseURL, stream)
	c.fs = filesystemconnect.NewFilesystemClient(c.http, opts.BaseURL, unary)
	c.watches = filesystemconnect.NewFilesystemClient(c.http, opts.BaseURL, stream)
	c.box = gloveboxv1connect.NewSandboxClient(c.http, opts.BaseURL, unary)
	c.attach = gloveboxv1connect.NewSandboxClient(c.http, opts.BaseURL, stream)
	return c
}

// Close ends all calls and streams with ErrClosed and waits for the client's
// goroutines. Commands run on. A goroutine that copies a command's standard
// input may stay blocked in the caller's reader, and Close waits for writers
// the caller gave. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, cancel := range c.calls {
		cancel(errClosed)
	}
	c.mu.Unlock()
	var err error
	if t, ok := c.rt.(*Transport); ok {
		err = t.Close()
	}
	c.wg.Wait()
	return err
}

// begin ties a call to the client's life. The returned function must be
// called when the call is over.
func (c *Client) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	id := c.next
	c.next++
	c.calls[id] = cancel
	return ctx, func() {
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
		cancel(nil)
	}, nil
}

// spawn runs f in a goroutine that Close waits for, unless the client is
// closed already.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// unary makes one call and classifies its error. user "" is the client's.
func unary[Req, Res any](
	ctx context.Context, c *Client, w where, user string, msg *Req,
	method func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error),
) (*Res, error) {
	bctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, c.fail(ctx, w, err)
	}
	defer done()
	bctx, cancel := context.WithTimeoutCause(bctx, callTimeout, errNoAnswer)
	defer cancel()
	req := connect.NewRequest(msg)
	c.account(req.Header(), user)
	if w.mode != 0 {
		req.Header().Set(wire.HeaderMode, octal(w.mode))
	}
	res, err := method(bctx, req)
	if err != nil {
		return nil, c.fail(bctx, w, err)
	}
	return res.Msg, nil
}

// account selects the account a call runs as, the way E2B's envd reads it.
func (c *Client) account(h http.Header, user string) {
	if user == "" {
		user = c.opts.User
	}
	if user != "" {
		h.Set("Authorization", basic(user))
	}
}
