package envd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

// maxJSON bounds the answers of the plain HTTP endpoints.
const maxJSON = 1 << 20

// Hello says who the agent is and what it measured of its own confinement.
// The answer is the agent's word. ErrUnsupported: it is E2B's envd.
func (c *Client) Hello(ctx context.Context) (*gloveboxv1.HelloResponse, error) {
	res, err := unary(ctx, c, where{op: "hello", ext: true}, "", &gloveboxv1.HelloRequest{}, c.box.Hello)
	switch {
	case err == nil:
		c.server.Store(extended)
	case backend.KindOf(err) == backend.ErrUnsupported:
		c.server.Store(plain)
	}
	return res, err
}

// extended tells whether the server has the glovebox service, asking it once.
func (c *Client) extended(ctx context.Context) (bool, error) {
	if c.server.Load() == unknown {
		if _, err := c.Hello(ctx); err != nil && backend.KindOf(err) != backend.ErrUnsupported {
			return false, err
		}
	}
	return c.server.Load() == extended, nil
}

// require is ErrUnsupported unless the server has the glovebox service.
func (c *Client) require(ctx context.Context, op string) error {
	ext, err := c.extended(ctx)
	if err == nil && !ext {
		err = c.error(where{op: op}, backend.ErrUnsupported, errors.New("envd of E2B cannot"))
	}
	return err
}

// InitRequest is what E2B's /init sets. What is left empty stays as it is.
type InitRequest struct {
	AccessToken    string            `json:"accessToken,omitempty"`
	EnvVars        map[string]string `json:"envVars,omitempty"` // replaces the earlier set
	DefaultUser    string            `json:"defaultUser,omitempty"`
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"`
	// Timestamp sets the clock of a VM.
	Timestamp *time.Time `json:"timestamp,omitempty"`
}

// Init sets the sandbox's token, environment and defaults. A token that is
// already set can only be repeated.
func (c *Client) Init(ctx context.Context, req InitRequest) error {
	body, err := json.Marshal(req)
	if err != nil {
		return c.error(where{op: "init"}, backend.ErrInvalid, err)
	}
	return c.plain(ctx, "init", http.MethodPost, "/init", body, nil)
}

// Health asks whether the agent answers.
func (c *Client) Health(ctx context.Context) error {
	return c.plain(ctx, "health", http.MethodGet, "/health", nil, nil)
}

// Metrics is what envd measures of the whole sandbox. Sizes are bytes.
type Metrics struct {
	Time       int64   `json:"ts"` // Unix seconds
	CPUs       float64 `json:"cpu_count"`
	CPUPercent float64 `json:"cpu_used_pct"`
	MemTotal   int64   `json:"mem_total"`
	MemUsed    int64   `json:"mem_used"`
	MemCache   int64   `json:"mem_cache"`
	DiskUsed   int64   `json:"disk_used"`
	DiskTotal  int64   `json:"disk_total"`
}

// Metrics reads the sandbox's metrics.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	var m Metrics
	if err := c.plain(ctx, opMetrics, http.MethodGet, "/metrics", nil, &m); err != nil {
		return Metrics{}, err
	}
	for _, n := range []int64{m.Time, m.MemTotal, m.MemUsed, m.MemCache, m.DiskUsed, m.DiskTotal} {
		if n < 0 {
			return Metrics{}, c.fail(ctx, where{op: opMetrics}, protocolf("a negative number in metrics"))
		}
	}
	if m.CPUs < 0 || m.CPUPercent < 0 {
		return Metrics{}, c.fail(ctx, where{op: opMetrics}, protocolf("a negative number in metrics"))
	}
	return m, nil
}

// plain makes one call to an endpoint that is no RPC and decodes its JSON.
func (c *Client) plain(ctx context.Context, op, method, path string, body []byte, into any) error {
	w := where{op: op}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return c.fail(ctx, w, err)
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.opts.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return c.error(w, backend.ErrInvalid, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.fail(ctx, w, err)
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent {
		return c.fail(ctx, w, responseError(res))
	}
	defer res.Body.Close()
	if into == nil {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxJSON))
	if err != nil {
		return c.fail(ctx, w, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return c.fail(ctx, w, protocolf("%v", err))
	}
	return nil
}

// Usage is what the sandbox has used, as seen from inside. Over E2B's envd
// only Memory and Disk are told.
func (c *Client) Usage(ctx context.Context) (backend.Usage, error) {
	ext, err := c.extended(ctx)
	if err != nil {
		return backend.Usage{}, err
	}
	if !ext {
		m, err := c.Metrics(ctx)
		return backend.Usage{Memory: m.MemUsed, Disk: m.DiskUsed}, err
	}
	w := where{op: "usage", ext: true}
	res, err := unary(ctx, c, w, "", &gloveboxv1.MeasureRequest{}, c.box.Measure)
	if err != nil {
		return backend.Usage{}, err
	}
	u, err := usageOf(res)
	if err != nil {
		return backend.Usage{}, c.fail(ctx, w, err)
	}
	return u, nil
}

// SetDeadline makes the agent end the sandbox d from now; 0 disarms.
// ErrUnsupported over E2B's envd.
func (c *Client) SetDeadline(ctx context.Context, d time.Duration) error {
	w := where{op: "set deadline", ext: true}
	if d < 0 {
		return c.error(w, backend.ErrInvalid, errors.New("a negative duration"))
	}
	if err := c.require(ctx, w.op); err != nil {
		return err
	}
	_, err := unary(ctx, c, w, "", &gloveboxv1.SetDeadlineRequest{AfterNs: int64(d)}, c.box.SetDeadline)
	return err
}

// usageOf checks and converts; nil is nothing measured.
func usageOf(u *gloveboxv1.Usage) (backend.Usage, error) {
	for _, n := range []int64{
		u.GetCpuNs(), u.GetPeakMemoryBytes(), u.GetWallNs(), u.GetPeakProcesses(),
		u.GetStdoutBytes(), u.GetStderrBytes(), u.GetMemoryBytes(), u.GetDiskBytes(),
	} {
		if n < 0 || n == math.MaxInt64 {
			return backend.Usage{}, protocolf("usage of %d", n)
		}
	}
	return backend.Usage{
		Wall: time.Duration(u.GetWallNs()), CPU: time.Duration(u.GetCpuNs()),
		PeakMemory: u.GetPeakMemoryBytes(), Memory: u.GetMemoryBytes(),
		PeakProcesses: u.GetPeakProcesses(), Disk: u.GetDiskBytes(),
		Stdout: u.GetStdoutBytes(), Stderr: u.GetStderrBytes(),
	}, nil
}
