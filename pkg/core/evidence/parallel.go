package evidence

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// Limits of a batch. A batch ends with the line that reaches one of them, so its size is
// below batchBytes + MaxLine.
const (
	batchLines = 64
	batchBytes = 128 << 10
)

// line is one line of a file with the result of the check of it. b, and any part of result that
// aliases b, is valid until use returns; see inOrder.
type line[T any] struct {
	n      uint64 // index of the line, from 0
	b      []byte // without the newline
	result T
	last   bool // nothing can be read after this line; set only if it was requested
}

// batch is a number of consecutive lines, which one goroutine checks.
type batch[T any] struct {
	lines []line[T]
	ends  []int  // the end of each line in buf
	buf   []byte // the lines
	err   error  // error that ended the reading after these lines; nil if more lines may follow
	done  chan struct{}
}

// inOrder reads the lines of a file. It calls check for the lines on GOMAXPROCS
// goroutines, in any order and before use is called with the same line; and it calls use
// for one line after the other, on the calling goroutine, with the result of check. It
// returns the error of open, the first error of use, or an error of the reader with the
// number of the line from 1. last requests line.last.
//
// Only 2·GOMAXPROCS + 2 batches exist at any time, so that the memory does not grow with
// the file.
func inOrder[T any](open Opener, last bool, check func(n uint64, b []byte) T, use func(l *line[T]) error) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	p := newPipeline(check)
	defer p.end()
	p.wg.Go(func() { p.read(newLineReader(r), last) })
	for b := range p.ready {
		<-b.done
		for i := range b.lines {
			if err := use(&b.lines[i]); err != nil {
				return err
			}
		}
		if b.err != nil && !errors.Is(b.err, io.EOF) {
			return b.err
		}
		p.free <- b
	}
	return nil
}

// pipeline passes batches from the reader to the goroutines that check them and, in the
// order of the file, to the goroutine that uses them. The capacity of each channel is the
// number of batches, so that only receiving from free waits for batches to be used.
type pipeline[T any] struct {
	free, work, ready chan *batch[T]
	stop              chan struct{} // closed when no more lines are needed
	wg                sync.WaitGroup
}

// newPipeline returns a pipeline whose goroutines wait for batches.
func newPipeline[T any](check func(n uint64, b []byte) T) *pipeline[T] {
	workers := runtime.GOMAXPROCS(0)
	n := 2*workers + 2
	p := &pipeline[T]{free: make(chan *batch[T], n), work: make(chan *batch[T], n), ready: make(chan *batch[T], n), stop: make(chan struct{})}
	for range n {
		p.free <- &batch[T]{}
	}
	for range workers {
		p.wg.Go(func() {
			for b := range p.work {
				for i := range b.lines {
					b.lines[i].result = check(b.lines[i].n, b.lines[i].b)
				}
				close(b.done)
			}
		})
	}
	return p
}

// end makes the goroutines of the pipeline exit and waits for them.
func (p *pipeline[T]) end() {
	close(p.stop)
	p.wg.Wait()
}

// read reads batches until the reading ends or end is called.
func (p *pipeline[T]) read(in *lineReader, last bool) {
	defer close(p.work)
	defer close(p.ready)
	for n := uint64(0); ; {
		select {
		case <-p.stop:
			return
		case b := <-p.free:
			b.fill(in, n, last)
			n += uint64(len(b.lines))
			p.work <- b
			p.ready <- b
			if b.err != nil {
				return
			}
		}
	}
}

// fill replaces the lines of the batch by the next ones. The first has the index n.
func (b *batch[T]) fill(in *lineReader, n uint64, last bool) {
	if cap(b.buf) > 2*batchBytes {
		b.buf = nil // it held a long line
	}
	clear(b.lines)
	b.lines, b.ends, b.buf, b.done = b.lines[:0], b.ends[:0], b.buf[:0], make(chan struct{})
	for b.err == nil && len(b.ends) < batchLines && len(b.buf) < batchBytes {
		b.err = b.next(in, n+uint64(len(b.ends)), last)
	}
	from := 0
	for i, end := range b.ends {
		b.lines = append(b.lines, line[T]{n: n + uint64(i), b: b.buf[from:end:end]})
		from = end
	}
	if end := len(b.lines) - 1; last && end >= 0 {
		b.lines[end].last = errors.Is(b.err, io.EOF)
	}
}

// next reads the line at index n into the batch. It returns io.EOF if there is none or, if
// last is set, if nothing can be read after it.
func (b *batch[T]) next(in *lineReader, n uint64, last bool) error {
	text, err := in.next()
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	b.buf = append(b.buf, text...)
	b.ends = append(b.ends, len(b.buf))
	if last && in.last() {
		return io.EOF
	}
	return nil
}

// concurrently calls f for each i below n, on at most GOMAXPROCS goroutines, and returns
// when all calls have returned. Each goroutine has a range of its own, because the events
// that cost most recur at regular distances.
func concurrently(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			for i := k * n / workers; i < (k+1)*n/workers; i++ {
				f(i)
			}
		})
	}
	wg.Wait()
}
