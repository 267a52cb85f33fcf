package gateway

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// TestLaggingKeys shows that the catalog applies cell_opened although the registry of
// keys, which another reader updates, has not read the root key when the catalog reads
// the event: a tool that is registered in the cell's tenant is in the catalog. If the wait
// for the registry fails, apply returns its error.
func TestLaggingKeys(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	log := &memlog.Log{}
	add := func(tenant, service, name, key string, d canon.Document) {
		t.Helper()
		m := &emit.Emitter{Log: log, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
		if _, err := m.Append(t.Context(), m.New(name, key, contract.Bytes(d), nil)); err != nil {
			t.Fatal(err)
		}
	}
	add("t", "provision", contract.EventKeyPublished, "trust", &contract.TrustKey{KID: root.KID})
	opened := &contract.CellOpened{Cell: contract.CellTenant, Log: "t", SignerKID: root.KID, Tenant: "t"}
	opened.Sig = root.Sign(sign.DomainCell, contract.Bytes(opened))
	add("t", "provision", contract.EventCellOpened, "cell", opened)
	add(contract.CellTenant, "judge", contract.EventToolRegistered, "tool-judge-score", &contract.Tool{Executor: "judge", Kind: "judge.score", Tool: "judge.score", Version: "v1",
		InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)})

	s := &Service{env: &run.Env{Emit: &emit.Emitter{Log: log, Now: time.Now}, Log: slog.Default()}}
	read := uint64(0)
	s.tools.Keys = func(string, string, string, uint64) ([]byte, error) {
		if read < 2 {
			return nil, errors.New("not read yet")
		}
		return root.Public(), nil
	}
	down := errors.New("down")
	s.await = func(uint64) error { return down }
	for en, err := range log.Scan(t.Context(), eventlog.Every, 1) {
		if err != nil {
			t.Fatal(err)
		}
		err = s.apply(en)
		if en.Seq == 2 {
			if !errors.Is(err, down) {
				t.Error("applied without the keys:", err)
			}
			s.await = func(seq uint64) error { read = seq; return nil }
			err = s.apply(en)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if tools := s.tools.Tools(); len(tools) != 1 || tools[0].Kind != "judge.score" {
		t.Errorf("%+v", tools)
	}
}
