// Package agent is the server inside a sandbox: it starts commands, follows
// them, and answers the host over one byte stream.
//
// It serves E2B's process.Process, the glovebox.v1.Sandbox service beside it,
// /health, /metrics, /envs, /init and the port dialler. The file half is
// mounted by the caller (Server.Mount).
//
// Everything a command does is taken as an attack on the agent: what it can
// make the agent hold (commands, output, input, descriptors) is bounded, and
// the bounds are the constants of limits.go.
package agent
