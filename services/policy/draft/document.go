package draft

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Document is a policy document before it is in force: its layer (p0, p1 or p2), its
// name within the layer, the precedence of a bundle, and its bytes.
type Document struct {
	Layer      string
	Name       string
	Precedence int64
	Body       []byte
}

// Read reads a policy document from a file or folder. A .tar.gz file, a .rego file, or a
// folder of Rego and data is a bundle with the precedence 500; its name is that of the
// file or folder without .tar.gz or .rego. Any other file must be a JSON object: with a
// member "scope" it is an overlay, named by its id, and otherwise ceilings, signed or
// not; Body is its canonical form. Read returns errors of the file system and of Build
// unchanged; an error about the content of a JSON file names the file. The content of a
// .tar.gz file is not checked.
func Read(path string) (*Document, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	switch {
	case info.IsDir(), strings.HasSuffix(path, ".rego"):
		b, err := Build(path, "", nil)
		return &Document{Layer: "p1", Name: strings.TrimSuffix(name, ".rego"), Precedence: 500, Body: b}, err
	case strings.HasSuffix(path, ".tar.gz"):
		b, err := os.ReadFile(path)
		return &Document{Layer: "p1", Name: name, Precedence: 500, Body: b}, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body, err := canon.Transform(nil, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var peek map[string]json.RawMessage
	if err := json.Unmarshal(body, &peek); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if peek["scope"] != nil {
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("%s: overlay: %w", path, err)
		}
		return &Document{Layer: "p2", Name: o.ID, Body: body}, nil
	}
	return &Document{Layer: "p0", Body: body}, nil
}

// Build packs the .rego, data.json and .manifest files of a folder and its subfolders, or a
// single Rego file, into a bundle. The bundle is signed with the seed of an Ed25519 key,
// which must have 32 bytes, under the key id kid; a nil seed leaves it unsigned. Files that
// end in _test.rego are left out. The same files, kid and seed produce the same bytes.
// Build returns errors of the file system, and an error if there is no .rego file other
// than tests, or if the files do not form a bundle or do not parse.
func Build(path, kid string, seed []byte) ([]byte, error) {
	files, err := bundleFiles(path, false)
	if err != nil {
		return nil, err
	}
	return rego.Build(files, kid, seed)
}

// bundleFiles returns the files of a bundle by path relative to the folder; a single file
// has its base name. Rego tests are included if tests is set. It returns an error if there
// is no .rego file that is not a test.
func bundleFiles(path string, tests bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := filepath.Base(p)
		if !(strings.HasSuffix(base, ".rego") && (tests || !strings.HasSuffix(base, "_test.rego")) || base == "data.json" || base == ".manifest") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		if rel == "." {
			rel = base
		}
		files[filepath.ToSlash(rel)] = b
		return nil
	})
	policy := func(name string) bool {
		return strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego")
	}
	if err == nil && !slices.ContainsFunc(slices.Collect(maps.Keys(files)), policy) {
		err = fmt.Errorf("%s contains no .rego file that is not a test: add one with the rule answer", path)
	}
	return files, err
}
