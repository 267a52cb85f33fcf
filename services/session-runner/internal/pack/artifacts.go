package pack

import (
	"fmt"
	"mime"
	"path"
	"strings"
	"unicode"
)

// Artifact is an entry of the member artifacts of a manifest: a member of the output, a string, whose
// content is stored as an artifact. The caller receives the id of the artifact in its place. If List is
// true, the member is an array of such strings, each of which becomes an artifact.
type Artifact struct {
	Member    string `json:"member" yaml:"member"`
	Name      string `json:"name" yaml:"name"`               // name of the artifact
	MediaType string `json:"media_type" yaml:"media_type"`   // such as text/x-diff
	Base64    bool   `json:"base64,omitempty" yaml:"base64"` // the program writes the content in base64
	List      bool   `json:"list,omitempty" yaml:"list"`     // the member is an array; the names of its artifacts have the number of the item
}

// Numbered returns the name of the artifact of the item at an index of a list: the name of the entry
// with the number of the item, from 1 on, before the extension.
func (a *Artifact) Numbered(index int) string {
	ext := path.Ext(a.Name)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(a.Name, ext), index+1, ext)
}

// Maxima of the member artifacts.
const (
	maxArtifacts = 16
	maxName      = 255
	maxNumbered  = maxName - len("-64") // of a name in a list, which gets a number

	// MaxListed is the maximum number of items of a member that is a list of artifacts.
	MaxListed = 64
)

// checkArtifacts returns an error that names an invalid member of artifacts.
func checkArtifacts(all []Artifact) error {
	if len(all) > maxArtifacts {
		return fmt.Errorf("artifacts: want at most %d", maxArtifacts)
	}
	seen := map[string]bool{}
	for i, a := range all {
		kind, _, err := mime.ParseMediaType(a.MediaType)
		limit := maxName
		if a.List {
			limit = maxNumbered
		}
		switch {
		case a.Member == "" || seen[a.Member]:
			return fmt.Errorf("artifacts[%d].member: %q is empty or stated before", i, a.Member)
		case a.Name == "" || len(a.Name) > limit || strings.ContainsFunc(a.Name, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }):
			return fmt.Errorf("artifacts[%d].name: %q: want 1 to %d printable characters without a slash", i, a.Name, limit)
		case err != nil || !strings.Contains(kind, "/") || len(a.MediaType) > maxName:
			return fmt.Errorf("artifacts[%d].media_type: %q is not a media type, such as text/x-diff", i, a.MediaType)
		}
		seen[a.Member] = true
	}
	return nil
}

// Input is an entry of the member artifact_inputs of a manifest: an argument that is the id of an
// artifact of the caller. The program receives the content, in base64, in the member _artifacts of
// its input, under the name of the argument.
type Input struct {
	Member   string `json:"member" yaml:"member"`
	MaxBytes int64  `json:"max_bytes" yaml:"max_bytes"` // maximum size of the artifact
}

// MaxInputBytes is the maximum of the sum of MaxBytes in a manifest. The session-runner holds the
// content in memory.
const MaxInputBytes = 32 << 20

// checkInputs returns an error that names an invalid member of artifact_inputs.
func checkInputs(all []Input) error {
	seen, total := map[string]bool{}, int64(0)
	for i, in := range all {
		switch {
		case in.Member == "" || seen[in.Member]:
			return fmt.Errorf("artifact_inputs[%d].member: %q is empty or stated before", i, in.Member)
		case in.MaxBytes < 1 || in.MaxBytes > MaxInputBytes-total:
			return fmt.Errorf("artifact_inputs[%d].max_bytes: want at least 1, and at most %d in all", i, MaxInputBytes)
		}
		seen[in.Member] = true
		total += in.MaxBytes
	}
	return nil
}
