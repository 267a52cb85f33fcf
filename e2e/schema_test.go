package e2e

import (
	"bytes"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/schemas"
)

// checkSchemas validates the data of every event on the mesh's ledger against the schema
// that the event names. It also checks that events of every schema occur, except for
// older versions of a schema and for events that the scripts do not cause.
func checkSchemas(t *testing.T, m *harness.Mesh) {
	c := jsonschema.NewCompiler()
	compiled := map[string]*jsonschema.Schema{}
	err := fs.WalkDir(schemas.Events, "events", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := schemas.Events.ReadFile(path)
		if err != nil {
			return err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		id := doc.(map[string]any)["$id"].(string)
		if err := c.AddResource(id, doc); err != nil {
			return err
		}
		compiled[id], err = c.Compile(id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Operator().Do(t.Context(), "GET", "/api/v1/ledger", "", "")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(r.Body)) {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		e := doc.(map[string]any)
		id := e["dataschema"].(string)
		s := compiled[id]
		if s == nil {
			t.Fatalf("event %s names schema %s, which does not exist", e["id"], id)
		}
		if err := s.Validate(e["data"]); err != nil {
			t.Errorf("event %s: %v", e["id"], err)
		}
		seen[id]++
	}
	t.Log(seen)
	for id := range compiled {
		at := strings.LastIndex(id, ":v")
		stem := id[:at]
		n, err := strconv.Atoi(id[at+2:])
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case seen[id] > 0:
		case compiled[stem+":v"+strconv.Itoa(n+1)] != nil: // a newer version of the schema exists, so events of this one are no longer recorded
		case strings.Contains(id, "key_revoked"), strings.Contains(id, "tool_retired"), strings.Contains(id, "start_expired"), strings.Contains(id, "secret_refused"), strings.Contains(id, "ledger_truncated"), strings.Contains(id, "log_epoch_opened"), strings.Contains(id, "response_cached"), strings.Contains(id, "snapshot_rejected"),
			strings.Contains(id, "operator_withdrawn"), strings.Contains(id, ":tenant_"):
			// the scripts do not cause these events
		case strings.Contains(id, "job_notified"): // recorded in TestPipelineKilled
		case strings.Contains(id, ":endpoint_flow_"): // recorded in TestEndpoints
		case strings.Contains(id, ":mcp-router:"): // recorded in TestFederation
		case strings.Contains(id, ":login_renewed:"), strings.Contains(id, "invit"), strings.Contains(id, ":identity_"), strings.Contains(id, ":groups_reported:"): // recorded in TestLoginsEverywhere
		case strings.Contains(id, ":egress"), strings.Contains(id, ":sandbox_"), strings.Contains(id, ":reaction_failed:"): // recorded in TestEgressBroker, TestHeldSandboxes, or only by a tool or a reactor that no script has
		case strings.Contains(id, ":passkey_"): // recorded in TestPasskeys
		case strings.Contains(id, ":pack_installed:"), strings.Contains(id, ":pack_uninstalled:"): // recorded in TestChangedPacks
		case strings.Contains(id, ":vault-broker:lease_"), strings.Contains(id, ":vault-broker:token_"): // recorded in TestDatabaseCredentials and TestAccessTokens
		case strings.Contains(id, ":content_keys_destroyed:"): // recorded in TestErasure
		case strings.Contains(id, "config_reloaded"): // recorded only in TestConfigured
		case strings.Contains(id, ":budget_changed:"): // no new ledger has reservations
		case strings.Contains(id, ":allotment_closed:"), strings.Contains(id, ":allotment_recalled:"), strings.Contains(id, ":allotment_returned:"): // recorded only with several instances of policy
		case m.Name != "compose" || !strings.Contains(id, "cancel"):
			t.Errorf("no event of %s on the ledger: the scripts miss it", id)
		}
	}
}
