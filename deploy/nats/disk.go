package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// After a failed write, the server's file store refuses every further write until the server is
// started again (nats-server 2.15.3, fileStore.setWriteErr), even if the disk that was full has
// free space again.

// full is the free space in bytes below which a write is likely to have failed, and enough the
// space at which the server is started again, or a tenth of the file system if that is less.
const (
	full   = 1 << 20
	enough = 64 << 20
)

// space returns the bytes of the file system of dir, and how many of them are free for the user
// of this process.
func space(dir string) (total, free uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil //nolint:gosec // the size of a block is positive
}

// untilRoom returns nil once the file system of dir has been full and has space again, which it
// checks once every pause. It returns an error only if the function space does.
func untilRoom(dir string, space func(string) (total, free uint64, err error), pause time.Duration, warn func(string, ...any)) error {
	for wasFull := false; ; time.Sleep(pause) {
		total, free, err := space(dir)
		switch {
		case err != nil:
			return err
		case !wasFull && total > 0 && free < full:
			wasFull = true
			warn("the file system of %s is full: the server stores nothing until it has space, and is then started again", dir)
		case wasFull && free >= min(enough, total/10):
			return nil
		}
	}
}

// watchDisk waits until the file system of the server's store has been full and has space
// again, sends the reason to ended, and shuts down the server. If it cannot read the free
// space, it logs a warning and returns. The process is expected to be started again when it
// ends.
func watchDisk(s *server.Server, dir string, ended chan<- error) {
	if err := untilRoom(dir, space, time.Second, s.Errorf); err != nil {
		s.Warnf("the free space of %s is not watched: %v", dir, err)
		return
	}
	ended <- fmt.Errorf("the file system of %s was full, and has space again: the server ends, to be started again", dir)
	s.Shutdown()
}
