package evidence

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// VerifyFile verifies a pack, an exported ledger, a tenant's export or the folder of an
// archive against the key id of the trusted root and the reader's demands. It
// distinguishes files by their content. The report is a *Report, a *LedgerReport or an
// *ExportReport, and nil after an error. The error is one of the file system, or
// describes the fault that the verification found.
func VerifyFile(path, rootKID string, demands Demands) (fmt.Stringer, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return orNil(VerifyArchive(path, rootKID, demands))
	}
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	first := make([]byte, len(headerLine))
	n, _ := io.ReadFull(f, first)
	switch {
	case bytes.Equal(first, headerLine):
		return orNil(VerifyExport(open, rootKID, demands))
	case n > 0 && first[0] == '{':
		return orNil(VerifyLedgerFrom(open, rootKID, demands))
	}
	pack, err := readFile(path, MaxPack)
	if err != nil {
		return nil, err
	}
	rep, err := Verify(pack, rootKID)
	if err == nil {
		err = demands.CheckPack(pack)
	}
	return orNil(rep, err)
}

// orNil returns a nil interface if err is not nil; a nil *Report in an interface
// would not compare equal to nil.
func orNil[T fmt.Stringer](rep T, err error) (fmt.Stringer, error) {
	if err != nil {
		return nil, err
	}
	return rep, nil
}

// ReadKept returns the checkpoint that a reader kept earlier, from a file that holds the
// signed note or from a pack. It returns an error of the file system, or an error that
// names the file if the file holds no checkpoint. It verifies no signature.
func ReadKept(path string) ([]byte, error) {
	b, err := readFile(path, MaxPack)
	if err != nil {
		return nil, err
	}
	if len(b) > 262 && string(b[257:262]) == "ustar" {
		files, err := readTar(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		b = files[pathCheckpoint]
	}
	if _, _, err := unsignedHead(string(b)); err != nil {
		return nil, fmt.Errorf("%s: has no checkpoint", path)
	}
	return b, nil
}
