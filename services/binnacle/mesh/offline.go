package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// ErrInUse is wrapped by the errors of Start and Offline if another Start or Offline has
// the folder locked.
var ErrInUse = errors.New("a mesh runs on this folder")

// lock takes the exclusive lock of a mesh's folder. If the lock is already held, it
// returns an error that wraps ErrInUse: two NATS servers on one store would destroy it.
// The lock is released when the file is closed or the process exits.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, private.FileMode)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
	}
	return f, nil
}

// storeFolder creates the NATS server's folder in a mesh's folder and returns its path.
// The server makes its files readable for its group, so the folder itself is accessible
// only to its owner.
func storeFolder(dir string) (string, error) {
	nats := filepath.Join(dir, "nats")
	return nats, errors.Join(private.Mkdir(nats), private.CheckOne(nats))
}

// Offline starts only the NATS server of the stopped mesh in dir, whose keys are in the
// folder keys, and connects to it as the provisioning identity. The error wraps ErrInUse
// if the folder dir is in use. After success, the caller closes the connection and then
// calls stop.
func Offline(dir, keys string) (c *bus.Conn, stop func(), err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, nil, err
	}
	l, err := lock(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	ring, err := keyring.Open(keys)
	if err != nil {
		return nil, nil, err
	}
	if err := keyring.Identities(ring); err != nil {
		return nil, nil, err
	}
	nats, err := storeFolder(dir)
	if err != nil {
		return nil, nil, err
	}
	conf, err := ServerConfig(ring, bus.ServerOptions{StoreDir: nats})
	if err != nil {
		return nil, nil, err
	}
	srv, err := embed.Start(conf, nil)
	if err != nil {
		return nil, nil, err
	}
	stop = func() { srv.Shutdown(); srv.WaitForShutdown(); l.Close() }
	if c, err = Provisioning(bus.Dialer{Server: srv}, ring); err != nil {
		stop()
	}
	return c, stop, err
}

// Provisioning connects to a NATS server as the provisioning identity. The caller closes
// the connection.
func Provisioning(d bus.Dialer, ring *keyring.Ring) (*bus.Conn, error) {
	seed, err := ring.NKey("provision")
	if err != nil {
		return nil, err
	}
	return bus.Connect(d, seed, "provision", true)
}

// Keeper connects to a NATS server as the identity that creates the mirrors. The caller
// closes the connection.
func Keeper(d bus.Dialer, ring *keyring.Ring) (*bus.Conn, error) {
	seed, err := ring.NKey(bus.MirrorKeeper)
	if err != nil {
		return nil, err
	}
	return bus.Connect(d, seed, "mirror", true)
}
