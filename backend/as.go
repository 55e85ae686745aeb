package backend

// As finds the outermost T among v and the layers inside it. A layer either
// shows what it wraps with an Unwrap() any method, or answers for itself with
// As(target any) bool, setting *target (a *T) when it has one; its answer is
// then final. Everyone who wants an optional interface asks As: an assertion
// would reach around the layers.
func As[T any](v any) (T, bool) {
	var zero T
	for v != nil {
		if t, ok := v.(T); ok {
			return t, true
		}
		if a, ok := v.(interface{ As(target any) bool }); ok {
			var t T
			if a.As(&t) {
				return t, true
			}
			return zero, false
		}
		u, ok := v.(interface{ Unwrap() any })
		if !ok {
			return zero, false
		}
		v = u.Unwrap()
	}
	return zero, false
}
