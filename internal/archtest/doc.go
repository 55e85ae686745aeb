// Package archtest holds the repository to its own rules: who may import whom
// and what, who may assert optional interfaces, and how long a file may be.
// Everything in it is a test.
package archtest
