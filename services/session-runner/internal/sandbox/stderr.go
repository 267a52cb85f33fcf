package sandbox

import "bytes"

// progressPrefix begins the lines of standard error that report progress.
const progressPrefix = `{"_progress":`

// MaxProgress is the maximum number of bytes of a line that reports progress, without its
// line break. A longer line is part of the standard error.
const MaxProgress = 1024

// Stderr is the writer of a program's standard error. It keeps the first StderrMax bytes and
// discards the rest. If Report is set, it is called for each complete line of at most
// MaxProgress bytes that begins with progressPrefix, and such a line is not kept; Report
// must not retain the slice. Report is called as often as the program writes such lines, so
// it must be cheap. Stderr is not safe for concurrent use.
type Stderr struct {
	Report func(line []byte)

	kept Capped
	line []byte // beginning of a line that may report progress
	rest bool   // the rest of the line is kept
}

// NewStderr returns the writer of the standard error of a run.
func NewStderr(s *Spec) *Stderr { return &Stderr{Report: s.Progress, kept: Capped{Max: StderrMax}} }

// Write implements io.Writer. It never fails.
func (e *Stderr) Write(p []byte) (int, error) {
	n := len(p)
	if e.Report == nil {
		return e.kept.Write(p)
	}
	for len(p) > 0 {
		part, end, _ := bytes.Cut(p, []byte{'\n'})
		ended := len(part) < len(p)
		p = end
		e.add(part, ended)
	}
	return n, nil
}

// add adds a part of one line; ended reports whether a line break follows it.
func (e *Stderr) add(part []byte, ended bool) {
	if !e.rest {
		room := MaxProgress - len(e.line)
		e.line = append(e.line, part[:min(len(part), room+1)]...)
		head := min(len(e.line), len(progressPrefix))
		switch {
		case string(e.line[:head]) != progressPrefix[:head] || len(part) > room:
			e.kept.Write(e.line[:len(e.line)-min(len(part), room+1)])
			e.rest = true
		case ended && head == len(progressPrefix):
			e.Report(e.line)
			e.line = e.line[:0]
			return
		case ended:
			e.kept.Write(append(e.line, '\n'))
			e.line = e.line[:0]
			return
		default:
			return
		}
	}
	e.kept.Write(part)
	e.line = e.line[:0]
	if ended {
		e.kept.Write([]byte{'\n'})
		e.rest = false
	}
}

// Bytes returns the kept bytes. No Write may follow.
func (e *Stderr) Bytes() []byte {
	if len(e.line) > 0 {
		e.kept.Write(e.line)
		e.line = nil
	}
	return e.kept.Buf
}
