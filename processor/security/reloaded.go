package security

import (
	"sync"
	"time"
)

// Reloaded is a value that is made from files, and that follows changes of the files while it is in use. It has
// no goroutine: the files are loaded again within calls of Current. If a load fails, Current keeps the last
// value, because the files may be half-written.
//
// Load, Equal, Changed and Failed are required. They run one at a time, and must not call Current.
type Reloaded[T any] struct {
	// Load reads and checks the files.
	Load func() (T, error)
	// Equal reports whether two values were made from equal content.
	Equal func(a, b T) bool
	// Interval is the least time between two loads; with 0, every Current loads the files.
	Interval time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Changed is called with each new value, except the first one.
	Changed func(T)
	// Failed is called with an error of Load if it differs from the error before.
	Failed func(error)

	mu      sync.Mutex
	loaded  time.Time
	value   T
	version uint64
	failure string // the last error of Load; "" after a success
}

// Start loads the first value and returns it. It must be called before Current.
func (r *Reloaded[T]) Start() (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, err := r.Load()
	if err == nil {
		r.value, r.loaded = value, r.now()
	}
	return value, err
}

// Current returns the value and its version, which grows with every change. It loads the files again if the
// last load is at least Interval ago.
func (r *Reloaded[T]) Current() (T, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now().Sub(r.loaded) >= r.Interval {
		r.reload()
		r.loaded = r.now()
	}
	return r.value, r.version
}

func (r *Reloaded[T]) reload() {
	value, err := r.Load()
	if err != nil {
		if err.Error() != r.failure {
			r.failure = err.Error()
			r.Failed(err)
		}
		return
	}
	r.failure = ""
	if !r.Equal(r.value, value) {
		r.value = value
		r.version++
		r.Changed(value)
	}
}

func (r *Reloaded[T]) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}
