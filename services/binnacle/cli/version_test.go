package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// TestVersion checks that the program's release is the newest in the changelog, that
// every section of the changelog has a version, that only the newest may be unreleased,
// and that the command prints this release, a commit, the Go release and the digest of the
// list of event schemas.
func TestVersion(t *testing.T) {
	log, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(log), -1)
	versioned := regexp.MustCompile(`^\d+\.\d+\.\d+( \((\d{4}-\d\d-\d\d|unreleased)\))?: `)
	for i, s := range sections {
		if !versioned.MatchString(s[1]) {
			t.Errorf("the section %q has no version", s[1])
		}
		if i > 0 && strings.Contains(s[1], "(unreleased)") {
			t.Errorf("the section %q is not the newest, and unreleased", s[1])
		}
	}
	if len(sections) == 0 || !strings.HasPrefix(sections[0][1], run.Release) {
		t.Errorf("release %s is not the newest section of the changelog", run.Release)
	}
	var out, errOut bytes.Buffer
	if code := execute(t.Context(), []string{"version", "--json"}, nil, &out, &errOut); code != 0 {
		t.Fatalf("code %d: %s", code, errOut.String())
	}
	var doc map[string]string
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc["version"], run.Release) || doc["commit"] == "" || !strings.HasPrefix(doc["go_version"], "go1.") ||
		!regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(doc["schema_lock"]) {
		t.Errorf("binnacle version --json printed %s", out.String())
	}
}
