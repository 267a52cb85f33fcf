// Package journal stores the actions of an agent while the mesh cannot be reached, until they
// can be reported. A journal is a file that only its owner can access; its first line names the
// journal, and each further line is an entry with a number. Several processes can use a journal:
// Open serializes them. An entry for which Append returned nil survives a crash and a loss of
// power, until Drop removes it because the mesh has recorded or refused it.
//
// A journal is not evidence: any program of its user can write one. The mesh records its
// entries as the statements of a client, and decides nothing from them.
package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Limits of a journal in bytes. Append returns an error that wraps ErrFull beyond them.
const (
	MaxSize  = 8 << 20
	MaxEntry = 256 << 10
)

// ErrFull is wrapped by the errors for an entry that is too long, and for a file, that of the
// journal or that of refused lines, which would become longer than MaxSize.
var ErrFull = errors.New("the journal is full")

// Entry is one observation. Its members are those of POST /api/v1/observations, and those that only
// the hook uses.
type Entry struct {
	Action     string          `json:"action"`
	Content    json.RawMessage `json:"content"`
	ErrorCode  string          `json:"error_code,omitempty"`
	Kind       string          `json:"kind"`
	Number     int64           `json:"number"` // set by Append
	ObservedAt string          `json:"observed_at"`
	Phase      string          `json:"phase"` // Began or Ended
	Status     string          `json:"status,omitempty"`
	Session    string          `json:"session"`          // name of the session
	Permit     json.RawMessage `json:"permit,omitempty"` // data for the hook that runs after the action
	File       string          `json:"file,omitempty"`   // name of the file for Permit
}

// The values of Entry.Phase.
const (
	Began = "began"
	Ended = "ended"
)

// Journal is a journal that is locked by this process, from Open to Close. It is not safe for
// concurrent use.
type Journal struct {
	ID      string  // empty before the first Append, and if the file has no valid header
	Entries []Entry // oldest first; callers must not change it

	refused [][]byte // lines that are not entries, and entries that the mesh refused
	path    string
	file    *os.File // holds the lock
	size    int64    // of the file, without a line that a crash cut off
	last    int64    // greatest number that was assigned
}

// header is the first line of a journal.
type header struct {
	Journal string `json:"journal"`
	After   int64  `json:"after,omitempty"` // the entries up to this number were reported
}

// Exists reports whether there is a journal at a path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Open locks and reads the journal at a path; a file that does not exist is an empty journal. It
// waits for other processes that have the journal open. It returns an error if another user can
// access the file. The caller must call Close.
func Open(path string) (*Journal, error) {
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := open(path+".lock", os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	j := &Journal{path: path, file: lock}
	if err := j.read(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return j, nil
}

// open opens a file that only this user can access.
func open(path string, more int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|more, private.FileMode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || int(s.Uid) != os.Geteuid() {
		return nil, errors.Join(fmt.Errorf("%s is not a file of this user alone; remove it, or change its mode to 0600", path), f.Close())
	}
	return f, nil
}

// Close unlocks the journal.
func (j *Journal) Close() error { return j.file.Close() }

func (j *Journal) read() error {
	f, err := open(j.path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return err
	}
	if len(b) > MaxSize {
		return fmt.Errorf("%s is longer than %d bytes: another program has changed it; move it away", j.path, MaxSize)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // what follows was not written completely
	j.size = int64(len(b))
	first := true
	for line := range bytes.Lines(b) {
		if first {
			j.readHeader(line)
			first = false
			continue
		}
		j.readEntry(line)
	}
	return nil
}

// readHeader reads the first line. If it is no valid header, it is read as an entry, and the
// journal has no id until Rename or Append gives it one.
func (j *Journal) readHeader(line []byte) {
	var h header
	if json.Unmarshal(line, &h) != nil || h.Journal == "" || len(h.Journal) > 64 || h.After < 0 || h.After > maxNumber {
		j.readEntry(line)
		return
	}
	j.ID, j.last = h.Journal, h.After
}

// maxNumber is the greatest number that is accepted from a file: the numbers after it are
// still exact in JSON.
const maxNumber = 1 << 52

// readEntry reads a line. A line that is no entry is added to refused. A number that does not
// increase, or is greater than maxNumber, is replaced.
func (j *Journal) readEntry(line []byte) {
	var e Entry
	if json.Unmarshal(line, &e) != nil || e.Action == "" || e.Session == "" {
		j.refused = append(j.refused, bytes.Clone(line))
		return
	}
	if e.Number <= j.last || e.Number > maxNumber {
		e.Number = j.last + 1
	}
	j.last = e.Number
	j.Entries = append(j.Entries, e)
}

// Last returns the newest entry of an action, or nil if there is none. It is valid until
// the next change of the journal.
func (j *Journal) Last(action string) *Entry {
	for i := len(j.Entries) - 1; i >= 0; i-- {
		if e := &j.Entries[i]; e.Action == action {
			return e
		}
	}
	return nil
}

// Append adds an entry and sets its number. If the error is nil, the entry is on disk.
func (j *Journal) Append(e Entry) error {
	if j.ID == "" {
		j.ID = rand.Text()
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	e.Number = j.last + 1
	line, err := json.Marshal(&e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if len(line) > MaxEntry {
		return fmt.Errorf("%w: an entry of %d bytes is longer than %d", ErrFull, len(line), MaxEntry)
	}
	if j.size+int64(len(line)) > MaxSize {
		return fmt.Errorf("%w: %s has %d bytes; `binnacle hook flush` reports its entries", ErrFull, j.path, j.size)
	}
	f, err := open(j.path, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(line, j.size)
	if err == nil {
		err = f.Truncate(j.size + int64(len(line)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	j.size, j.last = j.size+int64(len(line)), e.Number
	j.Entries = append(j.Entries, e)
	return nil
}

// Drop removes the entries up to a number, which the mesh has recorded or refused under the
// given id of the journal. The entries for which refused returns true, and lines that are not
// entries, move to the file at the journal's path with the suffix ".refused". Drop removes
// the journal if no entry remains. It does nothing if the journal has another id now.
func (j *Journal) Drop(id string, number int64, refused func(number int64) bool) error {
	if j.ID != id {
		return nil
	}
	for len(j.Entries) > 0 && j.Entries[0].Number <= number {
		if e := &j.Entries[0]; refused(e.Number) {
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			j.refused = append(j.refused, append(line, '\n'))
		}
		j.Entries = j.Entries[1:]
	}
	if err := j.setAside(); err != nil {
		return err
	}
	if len(j.Entries) > 0 {
		return j.rewrite()
	}
	err := os.Remove(j.path)
	j.ID, j.size, j.last = "", 0, 0
	return err
}

// setAside appends the refused lines to the file for them. It returns an error, so that
// nothing is lost, if that file would be longer than MaxSize.
func (j *Journal) setAside() error {
	if len(j.refused) == 0 {
		return nil
	}
	path := j.path + ".refused"
	f, err := open(path, os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bytes.Join(j.refused, nil)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size()+int64(len(b)) > MaxSize {
		return fmt.Errorf("%w: %s has %d bytes; examine its lines and remove it", ErrFull, path, info.Size())
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	j.refused = nil
	return f.Sync()
}

// Rename gives the journal a new id, under which its entries are reported.
func (j *Journal) Rename() error {
	j.ID = rand.Text()
	return j.rewrite()
}

// rewrite replaces the file by the header and the entries.
func (j *Journal) rewrite() error {
	if err := j.setAside(); err != nil {
		return err
	}
	h := header{Journal: j.ID, After: j.last}
	if len(j.Entries) > 0 {
		h.After = j.Entries[0].Number - 1
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&h); err != nil {
		return err
	}
	for i := range j.Entries {
		if err := enc.Encode(&j.Entries[i]); err != nil {
			return err
		}
	}
	j.size = int64(b.Len())
	return private.Write(j.path, b.Bytes())
}
