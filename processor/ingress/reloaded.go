package ingress

import (
	"sync"
	"time"
)

// Reloaded is a value made from files, which is loaded again while it is in
// use. There is no goroutine: Current looks at the files. Content that cannot
// be loaded leaves the last value in use, because the files may be half-written.
//
// Load is required; so is Changed or Failed where somebody has to learn of it.
// They run one at a time and must not call Current.
type Reloaded[T any] struct {
	// Load reads and checks the files.
	Load func() (T, error)
	// Equal tells whether two values come from equal content.
	Equal func(a, b T) bool
	// Interval is the least time between two loads; 0 loads at every Current.
	Interval time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Changed is called with each new value but the first; nil for nothing.
	Changed func(T)
	// Failed is called once for each different error of Load; nil for nothing.
	Failed func(error)

	mu      sync.Mutex
	loaded  time.Time
	value   T
	version uint64
	failure string // the last error of Load; "" after a success
}

// Start loads the value for the first time. It comes before Current.
func (r *Reloaded[T]) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, err := r.Load()
	if err != nil {
		return err
	}
	r.value, r.loaded = value, r.now()
	return nil
}

// Current returns the value, loaded again if Interval is over, and its version,
// which grows with every change.
func (r *Reloaded[T]) Current() (T, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.now(); now.Sub(r.loaded) >= r.Interval {
		r.reload()
		r.loaded = now
	}
	return r.value, r.version
}

func (r *Reloaded[T]) reload() {
	value, err := r.Load()
	if err != nil {
		if err.Error() != r.failure && r.Failed != nil {
			r.Failed(err)
		}
		r.failure = err.Error()
		return
	}
	r.failure = ""
	if r.Equal(r.value, value) {
		return
	}
	r.value = value
	r.version++
	if r.Changed != nil {
		r.Changed(value)
	}
}

func (r *Reloaded[T]) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}
