package evidence

import (
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// pathCosignatures holds witnesses' signature lines over the checkpoint, one a
// line. It is there only where an exporter asked for witnesses.
const pathCosignatures = "cosignatures"

// Witness is one that a verifier trusts.
type Witness struct {
	Name      string
	PublicKey []byte
}

// CheckWitnesses reports an error unless at least k of the witnesses have
// cosigned the pack's checkpoint. Verify comes first; this says nothing about
// the rest of the pack.
func CheckWitnesses(pack []byte, k int, witnesses []Witness) (names []string, err error) {
	files, err := readTar(pack)
	if err != nil {
		return nil, err
	}
	for i, w := range witnesses {
		for _, other := range witnesses[:i] {
			if other.Name == w.Name || string(other.PublicKey) == string(w.PublicKey) {
				return nil, fmt.Errorf("witnesses: %s and %s are one: each name and each key counts once", other.Name, w.Name)
			}
		}
		for line := range strings.Lines(string(files[pathCosignatures])) {
			if _, err := translog.VerifyCosignature(files[pathCheckpoint], strings.TrimSuffix(line, "\n"), w.Name, w.PublicKey); err == nil {
				names = append(names, w.Name)
				break
			}
		}
	}
	if len(names) < k {
		return names, fmt.Errorf("cosignatures: %d of the %d witnesses demanded", len(names), k)
	}
	return names, nil
}
