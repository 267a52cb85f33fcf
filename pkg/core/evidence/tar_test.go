package evidence

import "bytes"

// writeTar returns a tar file with these files, in the form of a pack.
func writeTar(files map[string][]byte) ([]byte, error) {
	size := 1024
	for _, f := range files {
		size += 1024 + len(f)
	}
	var b bytes.Buffer
	b.Grow(size)
	err := renderTar(&b, files)
	return b.Bytes(), err
}
