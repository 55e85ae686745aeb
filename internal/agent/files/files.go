//go:build linux

// Package files serves the files of a sandbox as E2B's envd does: the
// filesystem.Filesystem RPCs, GET and POST /files and POST /files/compose.
//
// Every access to a file happens with the rights of the request's user
// (package asuser), so links, devices and changing directories planted inside
// lead nowhere that user could not go alone. What is served is bounded in
// entries, bytes and watchers, and files are streamed, never held in memory.
//
// Names that are not valid UTF-8 are reported with each invalid byte sequence
// replaced by U+FFFD, as the wire's strings demand. Such an entry can be seen
// and goes away with its directory, but cannot be addressed by itself.
package files

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
	"github.com/glovebox-dev/glovebox/internal/launch/asuser"
)

// Account is a user inside the sandbox.
type Account struct {
	Name     string
	UID, GID uint32
	Groups   []uint32
	// Home is absolute; relative paths and ~ resolve against it.
	Home string
}

// Options say whose files are served and how much of them. Functions are
// called concurrently; zero bounds take the defaults named beside them.
type Options struct {
	// Lookup resolves a user name, "" being the default user. Required. Its
	// error text reaches clients: "user: unknown user <name>".
	Lookup func(name string) (Account, error)
	// OwnUID says that the agent has no other uid than its own: nothing is
	// switched and any other account is refused.
	OwnUID bool
	// OwnerName and GroupName give the names that entries show; nil or an
	// empty answer shows the number.
	OwnerName func(uid uint32) string
	GroupName func(gid uint32) string
	// Workdir is what an empty path means; nil or "" is the user's home.
	Workdir func() string

	MaxUpload   int64 // bytes of one uploaded file, decompressed; 0 is no limit but the disk
	MaxParts    int   // files in one multipart upload: 10,000
	MaxEntries  int   // entries of one listing: 100,000
	MaxListing  int   // bytes of names, paths and metadata in one listing: 32 MiB
	MaxWatchers int   // watchers, ended ones too until they are removed, and watch streams together: 64
	MaxWatched  int   // directories of all watchers together: 16,384
	MaxEvents   int   // events that one watcher keeps for GetWatcherEvents: 10,000
}

func (o *Options) setDefaults() {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&o.MaxParts, 10_000)
	set(&o.MaxEntries, 100_000)
	set(&o.MaxListing, 32<<20)
	set(&o.MaxWatchers, 64)
	set(&o.MaxWatched, 16_384)
	set(&o.MaxEvents, 10_000)
}

// Service serves files. It is safe for concurrent use and does nothing until
// the first request. New files and directories get 0666 and 0777 less the
// program's umask, which the agent sets to 022 as E2B's.
type Service struct {
	opts    Options
	buffers sync.Pool // of *[copyBuffer]byte

	ctx  context.Context //nolint:containedctx // the service's life, ended by Close
	stop context.CancelFunc
	wg   sync.WaitGroup // running watches

	mu       sync.Mutex // guards the rest
	closed   bool
	kept     int // watches that run, and polled ones that ended and are remembered
	watched  int // directories in them
	watchers map[string]*pollWatcher
}

// New returns the service. The caller closes it.
func New(opts Options) *Service {
	opts.setDefaults()
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives until Close
	return &Service{
		opts: opts, ctx: ctx, stop: stop,
		buffers:  sync.Pool{New: func() any { return new([copyBuffer]byte) }},
		watchers: map[string]*pollWatcher{},
	}
}

// maxRequest bounds one RPC request: two paths and their encoding.
const maxRequest = 256 << 10

// Mount adds the handlers to mux: /filesystem.Filesystem/, GET and POST /files
// and POST /files/compose. They check no token; the caller does, before.
func (s *Service) Mount(mux *http.ServeMux, opts ...connect.HandlerOption) {
	opts = append([]connect.HandlerOption{connect.WithReadMaxBytes(maxRequest)}, opts...)
	mux.Handle(filesystemconnect.NewFilesystemHandler(&rpc{s}, opts...))
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	mux.HandleFunc("POST /files/compose", s.compose)
}

// Close ends all watchers and watch streams and waits for them. Other requests
// are not interrupted. Idempotent; watching is refused afterwards.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	return nil
}

// as runs fn with acct's rights on files.
func (s *Service) as(acct Account, fn func() error) error {
	if s.opts.OwnUID {
		if int(acct.UID) != os.Geteuid() {
			return fmt.Errorf("use the files of user %q: only uid %d exists here: %w", acct.Name, os.Geteuid(), unix.EPERM)
		}
		return fn()
	}
	return asuser.Do(asuser.Cred{UID: acct.UID, GID: acct.GID, Groups: acct.Groups}, fn)
}

// account is the user of an RPC.
func (s *Service) account(h http.Header) (Account, error) {
	name := requestUser(h)
	acct, err := s.opts.Lookup(name)
	if err == nil {
		return acct, nil
	}
	if name == "" {
		return Account{}, rpcError(connect.CodeUnauthenticated, fmt.Errorf("invalid default user: %w", err))
	}
	return Account{}, rpcError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%s'", name))
}

// requestUser is the user name in an RPC's request header, "" when there is
// none. As in E2B it is Basic authorization's, whose password is ignored.
func requestUser(h http.Header) string {
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	return name
}

// names finds the names of owners and groups, each once.
type names struct {
	s      *Service
	owners map[uint32]string
	groups map[uint32]string
}

func (s *Service) names() *names {
	return &names{s: s, owners: map[uint32]string{}, groups: map[uint32]string{}}
}

func (n *names) owner(uid uint32) string { return named(n.owners, n.s.opts.OwnerName, uid) }
func (n *names) group(gid uint32) string { return named(n.groups, n.s.opts.GroupName, gid) }

func named(known map[uint32]string, find func(uint32) string, id uint32) string {
	if name, ok := known[id]; ok {
		return name
	}
	name := ""
	if find != nil {
		name = valid(find(id))
	}
	if name == "" {
		name = strconv.FormatUint(uint64(id), 10)
	}
	known[id] = name
	return name
}

var errClosed = errors.New("the sandbox is shutting down")
