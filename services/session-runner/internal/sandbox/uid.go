package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// UIDs allocates user ids to runs. No two concurrent runs have the same id, including
// the runs of other session-runners that share the folder of locks. UIDs is safe for
// concurrent use.
type UIDs struct {
	dir  string
	next atomic.Uint32
}

// The range of user ids is above the ids of users, services and containers.
const (
	firstUID = 2_000_000_000
	numUIDs  = 4096
)

// SharedUID is the user id of all runs if their tier can change the user id but has no
// UIDs.
const SharedUID = 65534

// OpenUIDs returns a UIDs that stores its locks in the first of the given folders that
// can be created and written. If there is none, it returns the error of the last folder.
func OpenUIDs(dirs ...string) (*UIDs, error) {
	err := errors.New("no folder")
	for _, d := range dirs {
		if err = os.MkdirAll(d, 0o700); err == nil {
			if err = unix.Access(d, unix.W_OK); err == nil {
				u := &UIDs{dir: d}
				u.next.Store(uint32(os.Getpid()) * 61)
				return u, nil
			}
		}
	}
	return nil, err
}

// Mapped reports whether the user namespace of this process contains all user ids that
// UIDs can allocate. A container engine may map fewer ids.
func Mapped() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	var inside, outside, size int64
	for rest := string(b); ; {
		n, err := fmt.Sscan(rest, &inside, &outside, &size)
		if n != 3 || err != nil {
			return false
		}
		if inside <= firstUID && firstUID+numUIDs <= inside+size {
			return true
		}
		for i, c := range rest {
			if c == '\n' {
				rest = rest[i+1:]
				break
			}
			if i == len(rest)-1 {
				return false
			}
		}
	}
}

// Take allocates an id, for both user and group, and returns a function that releases
// it. It returns an error if all ids are in use, or if the lock of an id cannot be
// opened or requested. The caller must call the function, but not before every process
// with the id has ended.
func (u *UIDs) Take() (int, func(), error) {
	for range numUIDs {
		id := firstUID + int(u.next.Add(1)%numUIDs)
		release, err := u.TakeAgain(id)
		if err == nil {
			return id, release, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return 0, nil, err
		}
	}
	return 0, nil, fmt.Errorf("all %d user ids for runs are in use", numUIDs)
}

// TakeAgain allocates the given id, for example one that Take returned to an earlier
// process, and returns a function that releases it. The error wraps unix.EWOULDBLOCK if
// another run has the id. Another error means that UIDs does not allocate the id, or
// that its lock cannot be opened or requested.
func (u *UIDs) TakeAgain(id int) (func(), error) {
	if id < firstUID || id >= firstUID+numUIDs {
		return nil, fmt.Errorf("%d is not a user id for runs", id)
	}
	f, err := os.OpenFile(filepath.Join(u.dir, fmt.Sprint(id)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
