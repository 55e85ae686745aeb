// Package backend is the contract between programs that want untrusted code
// run and the backends that run it.
//
// An [Executor] makes sandboxes, a [Sandbox] runs commands and holds files.
// These and [Process] and [Filesystem] are all a backend must provide; what
// only some can do is a small optional interface found with [As] and announced
// as a [Feature]. What a backend enforces is data ([Capabilities]), what one
// sandbox really got is its [Receipt].
//
// Three rules hold everywhere:
//
//   - A context bounds the call it is given to, never the thing the call made.
//   - An [Exit] says what a program did, a non-zero status included; an error
//     says that this is not known. Every error of a backend has a [Kind].
//   - What is asked for and cannot be enforced is refused with an [Error] that
//     names the field, the backend and the fix.
//
// The package imports the standard library only.
package backend
