package pack

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// LockFile is the name of the file that maps names of images to digests. The script
// deploy/images/base describes its lines.
const LockFile = "images.lock"

// Lock holds the digests of images by name.
type Lock map[string]string

var (
	digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	imageRE  = regexp.MustCompile(`^[a-z0-9][a-z0-9._/:-]{0,127}$`)
)

// ReadLock reads the lock files of the given folders. A name in a folder replaces the
// same name of a folder before it. A folder without a lock file, or "", adds no names.
func ReadLock(dirs ...string) (Lock, error) {
	out := Lock{}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, LockFile))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(strings.NewReader(string(body)))
		for n := 1; lines.Scan(); n++ {
			f := strings.Fields(lines.Text())
			if len(f) == 0 || f[0] != "image" {
				continue
			}
			if len(f) < 3 || !imageRE.MatchString(f[1]) || !digestRE.MatchString(f[2]) {
				return nil, fmt.Errorf("%s, line %d: want image NAME DIGEST", filepath.Join(dir, LockFile), n)
			}
			out[f[1]] = f[2]
		}
	}
	return out, nil
}

// ErrUnpinned means that an image is named by a name that no lock file has, and without a
// digest, so that its bytes could change without a change of the name.
var ErrUnpinned = errors.New("is not pinned")

// Resolve returns the digest of an image that is named as NAME@DIGEST, as DIGEST, or
// as a NAME of the lock file, and "" if image is "". The error of a name that is not
// pinned wraps ErrUnpinned.
func (l Lock) Resolve(image string) (string, error) {
	name, digest, pinned := strings.Cut(image, "@")
	switch {
	case image == "":
		return "", nil
	case digestRE.MatchString(image):
		return image, nil
	case !imageRE.MatchString(name):
		return "", fmt.Errorf("image: %q is not NAME, NAME@sha256:… or sha256:…", image)
	case pinned && digestRE.MatchString(digest):
		return digest, nil
	case pinned:
		return "", fmt.Errorf("image: %q: want sha256: and 64 hexadecimal digits after the @", image)
	case l[name] == "":
		return "", fmt.Errorf("image: %s %w: write %s@sha256:…, or add the name to %s in the folder of packs or of images", name, ErrUnpinned, name, LockFile)
	}
	return l[name], nil
}
