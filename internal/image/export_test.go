package image

// WithProgram is opts with another mmdebstrap.
func WithProgram(opts BuildOptions, path string) BuildOptions {
	opts.mmdebstrap = path
	return opts
}

// Choose is what the host's targets, as apt-get prints them, make of suite.
func Choose(targets, suite string) []string {
	return chooseSources(parseTargets([]byte(targets)), suite)
}
