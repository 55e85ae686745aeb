// Package runsc drives gVisor's runtime, the program runsc: it starts sandboxes
// from OCI bundles, bound to their creator or kept, and kills, pauses, saves,
// restores and removes them.
//
// Each sandbox has a state directory of its own, private to its creator, as
// runsc's --root. So no two sandboxes share a lock or a list, and what is left
// of one is one directory, its control groups and its processes.
package runsc
