// Package resident connects the program binnacle-hook with a helper, a process that
// answers hooks until it is idle, over a unix socket. It depends on the standard library
// alone, and on little of it, since the program starts for every tool call of an agent.
//
// The program sends a document as its length and its bytes. The helper sends a byte alive
// at once and then every interval while it decides, and at the end a byte done, the exit
// status, and each of standard output and standard error as its length and its bytes.
package resident

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// MaxDocument is the maximum size of a client's document in bytes.
const MaxDocument = 16 << 20

// maxAnswer is the maximum size of each stream of an answer in bytes.
const maxAnswer = 16 << 20

const (
	alive    = 0
	done     = 1
	interval = time.Second
)

// Answer is the output of the hook's process and its exit status.
type Answer struct {
	Stdout, Stderr string
	Exit           int
}

// variables are the environment variables, beside those that begin with BINNACLE_ or XDG_,
// on which the answer of a hook can depend.
var variables = []string{"HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "GODEBUG"}

// Path returns the path of the socket of the helper for a program and its arguments. The current
// folder, the environment variables on which an answer can depend, and the program's size and time
// of modification are part of its name, so that a helper answers only hooks that the program would
// answer in the same way.
func Path(program string, args []string) (string, error) {
	info, err := os.Stat(program)
	if err != nil {
		return "", err
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	var at syscall.Stat_t
	if err := syscall.Stat(".", &at); err != nil {
		return "", err
	}
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "BINNACLE_") || strings.HasPrefix(name, "XDG_") || slices.Contains(variables, name) {
			env = append(env, v)
		}
	}
	slices.Sort(env)
	h := sha256.New()
	for _, list := range [][]string{{program, info.ModTime().UTC().Format(time.RFC3339Nano), fmt.Sprint(info.Size()), dir, fmt.Sprint(at.Dev, at.Ino)}, args, env} {
		fmt.Fprintf(h, "%q\n", list)
	}
	folder, err := folder()
	return filepath.Join(folder, hex.EncodeToString(h.Sum(nil)[:12])), err
}

// folder returns the folder of the sockets.
func folder() (string, error) {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "binnacle"), nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "binnacle", "run"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "binnacle", "run"), err
}

// checkFolder returns an error unless a folder belongs to the user of this process and
// no other user may enter it.
func checkFolder(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder of this user alone; remove it, or change its mode to 0700", dir)
	}
	return nil
}

// checkPeer returns an error unless the process at the other end has the user of this one.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the process at the other end of the socket has user %d, not %d", cred.Uid, os.Geteuid())
	}
	return nil
}

// Ask sends a document to the helper at a socket and returns its answer. It returns an error if the
// helper sends nothing for the duration patience.
func Ask(path string, doc []byte, patience time.Duration) (*Answer, error) {
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := checkPeer(c); err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := writeBlock(c, doc); err != nil {
		return nil, err
	}
	head := []byte{alive}
	for head[0] == alive {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, head); err != nil {
			return nil, err
		}
	}
	return readAnswer(c)
}

func readAnswer(c io.Reader) (*Answer, error) {
	exit := make([]byte, 1)
	if _, err := io.ReadFull(c, exit); err != nil {
		return nil, err
	}
	stdout, err := readBlock(c, maxAnswer)
	if err != nil {
		return nil, err
	}
	stderr, err := readBlock(c, maxAnswer)
	return &Answer{Stdout: string(stdout), Stderr: string(stderr), Exit: int(exit[0])}, err
}

func writeBlock(c io.Writer, b []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readBlock(c io.Reader, limit uint32) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > limit {
		return nil, fmt.Errorf("a block of %d bytes is longer than %d", n, limit)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return b, err
}
