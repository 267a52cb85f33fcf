package powerfs

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Recorder is a mounted file system that records changes. Its methods are safe for
// concurrent use.
type Recorder struct {
	cmd *exec.Cmd
	dir string // folder of the record

	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
}

// Mount mounts a file system at dir whose files are stored in the empty folder store.
// recorder is the path of the built command recorder. Each sync takes at least the given
// time. record is the folder in which Images stores the record. The error names /dev/fuse
// if the system has no FUSE. The caller must call Unmount.
func Mount(recorder, dir, store, record string, sync time.Duration) (*Recorder, error) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("losses of power are simulated by a FUSE file system, which needs /dev/fuse: %w", err)
	}
	r := &Recorder{cmd: exec.Command(recorder, dir, store, sync.String()), dir: record}
	r.cmd.Stderr = os.Stderr
	in, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.in, r.out = in, bufio.NewReader(out)
	if _, err := r.out.ReadString('\n'); err != nil {
		return nil, errors.Join(errors.New("the FUSE file system that simulates losses of power was not mounted"), r.cmd.Wait())
	}
	return r, nil
}

// request sends a line to the process and returns its response.
func (r *Recorder) request(line string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := fmt.Fprintln(r.in, line); err != nil {
		return "", err
	}
	response, err := r.out.ReadString('\n')
	return strings.TrimSpace(response), err
}

// Now returns the number of ops that were recorded so far.
func (r *Recorder) Now() (int, error) {
	response, err := r.request("now")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(response)
}

// Images returns an Images for the ops that were recorded so far.
func (r *Recorder) Images() (*Images, error) {
	path := filepath.Join(r.dir, "record")
	if _, err := r.request(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &Images{files: map[int]*content{}, folders: map[int]map[string]int{root: {}}}
	return m, gob.NewDecoder(f).Decode(&m.log)
}

// Unmount unmounts the file system. No process may use it after the call.
func (r *Recorder) Unmount() error {
	return errors.Join(r.in.Close(), r.cmd.Wait())
}
