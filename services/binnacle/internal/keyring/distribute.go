package keyring

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// provisionFiles lists the files of a ring that provision reads in addition to root.kid,
// its own NATS identity and the certificate authority of the NATS server; see
// services.Service.Files.
var provisionFiles = []string{"mirror.nkey", cellFile, operatorDir + "/", trustDir + "/", epochDir + "/"}

// filesOf returns the names of the files of a ring that an identity reads. A name that
// ends in "/" is a folder.
func filesOf(identity string) []string {
	own := provisionFiles
	if s, ok := services.Get(identity); ok {
		own = s.Files
	}
	return append([]string{rootKID, "nats.ca", identity + nkeyEnd, identity + signEnd}, own...)
}

// Distribute copies the keys of each service, and of provision, to the folder of dir that
// has its name. Each folder receives only the files that its service reads. A file is
// replaced by rename, and has mode 0600 and the owner of its folder. Folders that do not
// exist are skipped, so a host receives the keys of the services that it runs. It is an
// error if a folder holds the keys of another mesh.
//
// The folder dir/fifo, for the FIFOs that the session-runner shares with containerd, is
// given to the owner of the session-runner's folder, if both folders exist.
func (r *Ring) Distribute(dir string) error {
	for _, s := range append([]string{services.Provision}, services.Names()...) {
		to := filepath.Join(dir, s)
		if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if b, err := os.ReadFile(filepath.Join(to, rootKID)); err == nil && strings.TrimSpace(string(b)) != r.RootKID {
			return fmt.Errorf("%s holds the keys of another mesh (root %s, the ring's is %s); distribute from its ring, or empty the folder", to, bytes.TrimSpace(b), r.RootKID)
		}
		for _, name := range filesOf(s) {
			if err := distribute(r, name, to); err != nil {
				return err
			}
		}
	}
	return giveFIFOs(dir)
}

// PutNATSCA copies a PEM file of certificates into the ring, as the authority against
// which services and provision verify the NATS server. It is an error if the file
// contains no certificate.
func (r *Ring) PutNATSCA(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(b) {
		return fmt.Errorf("%s contains no certificate; name a PEM file", file)
	}
	return r.write("nats.ca", b)
}

// giveFIFOs changes the owner of dir/fifo to that of the session-runner's folder. It
// does nothing if one of the two does not exist.
func giveFIFOs(dir string) error {
	uid, gid, err := owner(filepath.Join(dir, services.SessionRunner))
	if err == nil {
		err = give(filepath.Join(dir, "fifo"), uid, gid)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// distribute copies one file of a ring, or the JSON files of one of its folders, to the
// same name below the folder to. A file or folder that does not exist is skipped.
func distribute(r *Ring, name, to string) error {
	folder, isFolder := strings.CutSuffix(name, "/")
	if !isFolder {
		b, err := os.ReadFile(r.Path(name))
		if errors.Is(err, fs.ErrNotExist) { // such as the signing key of a service that signs nothing, or mirror.nkey without a mirror
			return nil
		}
		if err != nil {
			return err
		}
		return PutOwned(filepath.Join(to, name), b)
	}
	files, err := os.ReadDir(r.Path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := mkdirOwned(filepath.Join(to, folder)); err != nil {
		return err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".json") { // temporary file of a write in progress
			continue
		}
		if err := distribute(r, filepath.Join(folder, f.Name()), to); err != nil {
			return err
		}
	}
	return nil
}

// PutOwned writes a file, in place of an existing one by rename, with mode 0600 and the
// owner of its folder. It does nothing if the file already has that content, mode and
// owner.
func PutOwned(path string, b []byte) error {
	uid, gid, err := owner(filepath.Dir(path))
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
		if i, err := os.Lstat(path); err == nil && i.Mode() == 0o600 {
			if u, g, err := owner(path); err == nil && u == uid && g == gid {
				return nil
			}
		}
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	if err := give(tmp, uid, gid); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func mkdirOwned(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	uid, gid, err := owner(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return give(dir, uid, gid)
}

func owner(path string) (uid, gid int, err error) {
	i, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st := i.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), nil
}

// give changes the owner of a file. It does nothing if the owner is already right,
// because changing it requires privileges.
func give(path string, uid, gid int) error {
	if u, g, err := owner(path); err != nil || u == uid && g == gid {
		return err
	}
	return os.Chown(path, uid, gid)
}
