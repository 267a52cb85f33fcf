package cli

import "runtime"

// ordered calls functions on all processors, and passes on their results in the order in
// which the functions were added.
type ordered[T any] struct {
	results chan chan T
	work    chan func()
}

// newOrdered returns an ordered for which at most n results wait at any time.
func newOrdered[T any](n int) *ordered[T] {
	o := &ordered[T]{results: make(chan chan T, n), work: make(chan func(), n)}
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for f := range o.work {
				f()
			}
		}()
	}
	return o
}

// add adds a function. It blocks while n results wait. If stop is closed meanwhile, add
// returns false, and f is not called.
func (o *ordered[T]) add(stop <-chan struct{}, f func() T) bool {
	result := make(chan T, 1)
	select {
	case o.results <- result:
		o.work <- func() { result <- f() }
		return true
	case <-stop:
		return false
	}
}

// close must be called after the last call of add. It does not wait for functions that were
// added.
func (o *ordered[T]) close() {
	close(o.results)
	close(o.work)
}

// each calls use with each result in order. It returns nil when close was called and
// all results were used, or the first error of use.
func (o *ordered[T]) each(use func(T) error) error {
	for result := range o.results {
		if err := use(<-result); err != nil {
			return err
		}
	}
	return nil
}
