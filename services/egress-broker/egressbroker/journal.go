package egressbroker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// journal is a file beside the socket of a call's proxy that exists while the proxy is
// open. It holds the sequence of the request and the open flows, so that another process
// can record their ends if this one is killed. The process that has the proxy holds a
// lock on the file (flock(2)) until it ends. The file is not synced: it survives the
// process, but may be lost in a loss of power.
type journal struct {
	path   string
	opened string // id of the event egress_opened; "" if left opened the journal

	mu   sync.Mutex
	file *os.File
}

// entry is a line of a journal: the request, the start of a flow, the end of one, or a mark, which
// a process writes before it records egress_closed.
type entry struct {
	Request    uint64    `json:"request,omitempty"` // ledger sequence
	Opened     string    `json:"opened,omitempty"`  // with Request: id of the event egress_opened, which may not be on the ledger
	Marks      bool      `json:"marks,omitempty"`   // with Request: egress_closed is not recorded before a mark; false in journals of earlier releases
	Begin      int64     `json:"begin,omitempty"`
	End        int64     `json:"end,omitempty"`
	Host       string    `json:"host,omitempty"`
	Port       int       `json:"port,omitempty"`
	Method     string    `json:"method,omitempty"`
	Path       string    `json:"path,omitempty"`
	Mode       string    `json:"mode,omitempty"`
	Credential string    `json:"credential,omitempty"`
	Mark       uint64    `json:"mark,omitempty"` // a ledger sequence that is not higher than that of egress_closed
	At         time.Time `json:"at,omitzero"`    // time of the mark
}

// newJournal creates and locks the journal of a request with this ledger sequence. opened is
// the id of its event egress_opened. newJournal empties an existing file,
// and returns an error if another process has locked the file.
func newJournal(path string, request uint64, opened string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{path: path, file: f, opened: opened}
	err = j.lock()
	if err == nil {
		err = f.Truncate(0) // not before the lock: another process may have the file
	}
	if err == nil {
		err = j.write(entry{Request: request, Opened: j.opened, Marks: true})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

// lock locks the file. It returns syscall.EWOULDBLOCK if another process has the lock, and
// fs.ErrNotExist if another process has removed or replaced the file meanwhile.
func (j *journal) lock() error {
	if err := syscall.Flock(int(j.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	locked, err := j.file.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Stat(j.path); err != nil || !os.SameFile(locked, named) {
		return cmp.Or(err, fs.ErrNotExist)
	}
	return nil
}

// left opens and locks the journal of a process that has ended. It returns nil and no
// error if a process still holds the lock, and fs.ErrNotExist if the journal was removed.
func left(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	j := &journal{path: path, file: f}
	switch err := j.lock(); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, f.Close()
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// write appends a line with one write, so that a killed process leaves at most the last line
// incomplete.
func (j *journal) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.file.Write(append(line, '\n'))
	return err
}

// maxNoted is the maximum length of a path or method in a journal in bytes.
const maxNoted = 512

// begin writes the start of a flow. The path must not contain secrets; proxy.Config.Begin
// receives it without them.
func (j *journal) begin(f proxy.Flow) error {
	return j.write(entry{Begin: f.ID, Host: f.Host, Port: f.Port, Method: clip(f.Method), Path: clip(f.Path), Mode: f.Mode, Credential: f.Credential})
}

func clip(s string) string { return netrule.Clip(s, maxNoted) }

// remove deletes and closes the journal, in this order: once it is not locked, it may be that
// of another proxy.
func (j *journal) remove() error {
	return errors.Join(os.Remove(j.path), j.file.Close())
}

// lines returns the complete lines of a journal.
func (j *journal) lines() (all []entry, err error) {
	b, err := os.ReadFile(j.path)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		var e entry
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &e) != nil {
			break
		}
		all = append(all, e)
	}
	return all, nil
}

// read returns the first line of a journal, and the flows that began and did not end. The
// sequence of the request is 0 if that line is not complete: the proxy was never open then.
func (j *journal) read() (request entry, open []entry, err error) {
	all, err := j.lines()
	if err != nil {
		return entry{}, nil, err
	}
	ended := map[int64]bool{}
	for _, e := range all {
		switch {
		case e.Request != 0:
			request = e
		case e.Begin != 0:
			open = append(open, e)
		case e.End != 0:
			ended[e.End] = true
		}
	}
	return request, slices.DeleteFunc(open, func(e entry) bool { return ended[e.Begin] }), nil
}
