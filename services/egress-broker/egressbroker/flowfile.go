package egressbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// flowNote is the extension of the files of open flows to endpoints.
const flowNote = ".flow"

// flowFile is the content of the file of an open flow to an endpoint, by which another
// process records the flow if this one is killed. The process that has the flow holds a lock
// on the file, as on a journal.
type flowFile struct {
	sending
	ID   string `json:"id"`  // of the event about the end of the flow, by whichever process it is recorded
	Seq  uint64 `json:"seq"` // last sequence of the ledger when the flow began
	Host string `json:"host"`
	Port int    `json:"port"`
	Mode string `json:"mode"`

	Marks bool `json:"marks,omitempty"` // the event is not recorded before a mark (see entry) in a further line; false in files of earlier releases
}

// flowNoted is a file that this process has locked.
type flowNoted struct {
	journal
	id string // of the event about the flow
}

// flowFiles makes and removes the files of the flows of one proxy.
type flowFiles struct {
	es   *endpoints
	of   sending
	mu   sync.Mutex
	open map[int64]*flowNoted // by id of the flow
}

// begin makes the file of a flow. If that fails, it logs an error, and the flow is not recorded if
// the process is killed.
func (x *flowFiles) begin(f proxy.Flow) {
	j, err := x.create(f)
	if err != nil {
		x.es.s.env.Log.Error("the start of a flow was not written: if this process is killed, the flow is not recorded", "endpoint", x.of.Endpoint, "err", err)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[int64]*flowNoted{}
	}
	x.open[f.ID] = j
}

// create makes and locks the file of a flow. The file gets the extension flowNote once it
// is complete and locked, so that a sweep does not find it before.
func (x *flowFiles) create(f proxy.Flow) (*flowNoted, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ledgerEndTime)
	defer cancel()
	last, err := x.es.s.env.Emit.Log.Last(ctx, bus.EveryEvent)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return nil, err
	}
	id := emit.NewID(contract.IDEgressFact)
	doc, err := json.Marshal(flowFile{sending: x.of, ID: id, Seq: last.Seq, Host: f.Host, Port: f.Port, Mode: f.Mode, Marks: true})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(x.es.s.Dir, id)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	j := &flowNoted{journal{path: path, file: file}, id}
	if _, err = file.Write(append(doc, '\n')); err == nil {
		err = j.lock()
	}
	if err == nil {
		err = os.Rename(path, path+flowNote)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path), file.Close())
	}
	j.path = path + flowNote
	return j, nil
}

// end appends the event about a flow that has ended or was denied, under the id in its file
// if it has one, and removes the file. If the event is not stored, the file remains without
// a lock, and a sweep records the flow.
func (x *flowFiles) end(flow int64, e *contract.Event) {
	x.mu.Lock()
	j := x.open[flow]
	delete(x.open, flow)
	x.mu.Unlock()
	if j == nil {
		x.es.s.append(e)
		return
	}
	e.ID = j.id
	end := j.remove
	x.es.s.ledger().marked(&j.journal)
	if !x.es.s.append(e) {
		end = j.file.Close
	}
	if err := end(); err != nil {
		x.es.s.env.Log.Warn("the file of a flow was not removed", "err", err)
	}
}

// sweep records the flows to endpoints whose files no process has locked, of this and of
// the other instances with the same folder, and removes the files.
func (es *endpoints) sweep(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(es.s.Dir), "*", "*"+flowNote))
	if err != nil {
		return err
	}
	for _, path := range paths {
		j, err := left(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && j == nil {
			continue // ended meanwhile, or open
		}
		if err != nil {
			return err
		}
		if err := es.left(ctx, j); err != nil {
			return errors.Join(err, j.file.Close())
		}
		if err := j.remove(); err != nil {
			return err
		}
	}
	return nil
}

// left records the flow of a file as ended by the end of its process. What it transferred
// is not known. It records nothing if the file is malformed, or the event is on the ledger.
func (es *endpoints) left(ctx context.Context, j *journal) error {
	raw, err := os.ReadFile(j.path)
	if err != nil {
		return err
	}
	raw, _, _ = bytes.Cut(raw, []byte("\n"))
	var f flowFile
	if json.Unmarshal(raw, &f) != nil || !contract.Token(f.Tenant) || !contract.Token(f.ID) {
		return nil
	}
	e := es.flow(f.sending, &proxy.Flow{Host: f.Host, Port: f.Port, Mode: f.Mode, Reason: proxy.BrokerFailed})
	e.ID = f.ID
	known, err := es.s.ledger().recorded(ctx, e, j, f.Seq+1, f.Marks)
	if err != nil || known {
		return err
	}
	es.s.ledger().marked(j)
	if _, err := es.s.env.Emit.Append(ctx, e); err != nil && !errors.Is(err, eventlog.ErrIDConflict) { // stored meanwhile
		return err
	}
	return nil
}
