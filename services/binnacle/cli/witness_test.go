package cli

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// TestWitnessLearns shows that a witness ignores a key event that the registry rejects,
// as services do, learns the keys after it, and does not read it again.
func TestWitnessLearns(t *testing.T) {
	alone(t)
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	good := trust.Publish(root, contract.TrustKey{Algorithm: "ed25519", KID: root.KID, Owner: "provision",
		PublicKey: base64.StdEncoding.EncodeToString(root.Public()), Tenant: "t", Uses: []string{contract.UseRoot}})
	forged := good
	forged.Owner = "audit"
	var from []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from = append(from, r.URL.Query().Get("from"))
		if r.URL.Query().Get("type") != contract.EventKeyPublished || len(from) > 2 {
			return
		}
		for i, k := range []contract.TrustKey{forged, good, forged} {
			e := contract.Event{Actor: "provision", Data: contract.Bytes(&k), ID: fmt.Sprint("k-", i), Key: "k", Lamport: uint64(i + 1), Name: contract.EventKeyPublished, Origin: "-", Client: "-", Session: "keys",
				Source: "provision/provision-1", Tenant: "t", Time: "2026-03-03T12:00:00.000Z", Version: contract.VersionOf(contract.EventKeyPublished)}
			b, err := e.Encode()
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintf(w, `{"seq":%d,"event":%s}`+"\n", i+1, b)
		}
	}))
	defer s.Close()
	w := witnessing{c: &env{addr: s.URL, token: "good", flags: pflag.NewFlagSet("", pflag.ContinueOnError)}, root: root.KID}
	for range 2 {
		if err := w.learn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !w.keys.Has(root.KID) || w.seen != 3 || from[2] != "4" {
		t.Errorf("has the key: %v; read up to %d; requested from %q", w.keys.Has(root.KID), w.seen, from)
	}
}

// TestStoryColours shows that the drawing fills the box of every kind of event.
func TestStoryColours(t *testing.T) {
	s := &story{}
	for _, kind := range []string{proofgraph.Intent, proofgraph.Attestation, proofgraph.Effect, proofgraph.TrustEvent, proofgraph.MergeDecision} {
		s.Nodes = append(s.Nodes, chapter{ID: kind, Kind: kind})
	}
	if svg := s.svg(); strings.Contains(svg, `fill=""`) {
		t.Error(svg)
	}
}
