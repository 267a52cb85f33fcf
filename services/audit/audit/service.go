// Package audit maintains the Merkle tree over the ledger, signs checkpoints, indexes
// sessions and receipts, detects lost history, and exports evidence. Only one instance
// runs at a time. Its folder can be rebuilt from the ledger, except the last checkpoint
// and the files of closed epochs. To add a query, register it in serve; to add an index,
// extend the view.
package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// Config is audit's configuration.
type Config struct {
	Dir        string        // folder of the view and of the last checkpoint
	Durability string        // durability mode of the ledger, written into checkpoints
	Interval   time.Duration // time between checkpoints while the log grows; 0 means half a second
}

// Service implements run.Service. mu guards the fields below it, except epoch, which
// enter sets before other goroutines start.
type Service struct {
	Config

	env  *run.Env
	view *View
	log  *follow.Follower // applies the ledger to the view

	mu          sync.Mutex
	checkpoints []point // checkpoints of this epoch, in ascending order of size
	epoch       int64
	truncated   error
	compared    bool   // the ledger was compared with the last checkpoint
	target      uint64 // size of the checkpoint that witnesses are to cosign
	targetSince time.Time
}

// point is a checkpoint with its cosignatures.
type point struct {
	size     uint64
	note     []byte
	tips     bool     // the checkpoint commits to a map of tips; checkpoints of releases before 0.5 do not
	cosigned []string // signature lines of witnesses
}

var logReader = bus.Reader{Name: "log", Stream: bus.Events, Filters: []string{bus.Filter{}.String()}}

// Declaration implements run.Service. The service reads the whole ledger and publishes
// checkpoints.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Audit, Slots: 1, Readers: []bus.Reader{logReader}, Logs: true}
}

// Run implements run.Service. It is ready once the view has reached the end of the
// ledger and the ledger was compared with the last checkpoint. If entries were lost or
// replaced, it records an alarm, continues to respond to queries, and signs no
// checkpoints; once the root key has opened a new epoch after such a loss, Run returns
// an error, so that the service restarts in that epoch.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	if s.Interval == 0 {
		s.Interval = 500 * time.Millisecond
	}
	if err := eventlog.Retry(ctx, func() error { return s.enter(ctx) }); err != nil {
		return err
	}
	closed, err := surviving(&s.Config, env.Log)
	if err != nil {
		return err
	}
	if s.view, err = OpenView(s.Dir); err != nil {
		return fmt.Errorf("audit view: %w", err)
	}
	s.view.Durable = func() error { return durable(ctx, env.Conn, env.Log) }
	defer closed()
	defer s.view.Close()
	if err := s.loadCheckpoints(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.view.checkTree(), s.checkTips()); err != nil {
		env.Log.Error("audit view is wrong and will be rebuilt", "err", err)
		if err := s.view.Reset(); err != nil {
			return err
		}
	}
	pos, lamport := s.view.Position()
	env.Emit.See(lamport)
	if lost := s.lost(ctx, pos); errors.Is(lost, errLost) {
		if err := s.alarm(ctx, lost); err != nil {
			return err
		}
	} else if lost != nil {
		return lost
	}
	f := follow.New(env.Conn, env.Instance, logReader, s.view.Add)
	f.Batch, f.Every, s.log = 5000, s.Interval, f
	env.ReportFollower("audit.view", f, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.truncated
	})
	s.serve(&rpc.Server{Transport: env.Transport, View: indexed{s}, Fresh: s.catchUp})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.Run(ctx, pos+1) })
	g.Go(func() error { return snapshots{s}.run(ctx) })
	g.Go(func() error {
		select {
		case <-f.Ready():
		case <-ctx.Done():
			return nil
		}
		if err := s.view.Flush(); err != nil {
			return err
		}
		if lost := s.compare(); errors.Is(lost, errLost) {
			if err := s.alarm(ctx, lost); err != nil {
				return err
			}
		} else if lost != nil {
			return fmt.Errorf("the last checkpoint cannot be compared with the ledger: %w", lost)
		}
		s.mu.Lock()
		s.compared = true
		s.mu.Unlock()
		ready()
		t := time.NewTicker(s.Interval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
			if err := s.view.ids.Damaged(); err != nil {
				return fmt.Errorf("audit's view must be built again: %w", err)
			}
			if s.mute() != nil {
				if err := s.catchUp(ctx); err != nil {
					return err
				}
				if err := s.reopened(ctx); err != nil {
					return err
				}
				continue
			}
			if err := s.checkpoint(ctx); err != nil {
				env.Log.Warn("checkpoint not written, retrying", "err", err)
			}
		}
	})
	return errors.Join(g.Wait(), s.view.Flush())
}

// catchUp reads the ledger up to its current end, for at most two seconds, and applies
// the entries that it has read to the view. It ignores an error of reading; its error is
// that of View.Flush.
func (s *Service) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_ = s.log.Poll(ctx)
	return s.view.Flush()
}

// origin returns the name of the log. A new epoch has a new name, because its tree does
// not extend the tree that witnesses have cosigned.
func (s *Service) origin() string {
	o := "binnacle/" + s.env.RootKID + "/" + logTenant(s.env)
	if s.epoch > 1 {
		o += fmt.Sprintf("/epoch-%d", s.epoch)
	}
	return o
}

// logTenant returns the last part of the log's origin before the epoch, which is also the
// tenant in the subjects of its checkpoints and of snapshots.
func logTenant(env *run.Env) string { return env.Cell.Log() }

func (s *Service) checkpointFile() string { return filepath.Join(s.Dir, "checkpoint") }

// loadCheckpoints reads the stored checkpoints and cosignatures of this log. It retries
// until the server responds or ctx is done.
func (s *Service) loadCheckpoints(ctx context.Context) error {
	seq := uint64(1)
	for {
		batch, err := s.env.Conn.GetBatch(ctx, bus.Checkpoints, bus.LogSubject(logTenant(s.env), "*"), seq, 1000)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.env.Log.Warn("checkpoints not read, retrying", "err", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		for _, m := range batch {
			if strings.HasSuffix(m.Header.Get(jetstream.SubjectHeader), ".cosignature") {
				s.recall(m.Data)
			} else if c, err := s.env.Trust.Checkpoint(m.Data); err == nil && c.Origin == s.origin() {
				_, tips, _ := c.Tips()
				s.checkpoints = append(s.checkpoints, point{size: c.Size, note: m.Data, tips: tips})
			}
			if _, err := fmt.Sscan(m.Header.Get(jetstream.SequenceHeader), &seq); err != nil {
				return err
			}
			seq++
		}
		if len(batch) == 0 {
			return nil
		}
	}
}

// errLost is wrapped by the errors which mean that the ledger is not the one that audit
// has read before. Policy denies every call after such an error, so a failed read must
// not count as one.
var errLost = errors.New(events.LedgerTruncatedName)

// compare compares the ledger with the last checkpoint, which is stored in a separate
// file. The view must have reached the end of the ledger. compare returns nil if no
// checkpoint is stored. It returns an error that wraps errLost if the ledger is shorter
// than the checkpoint or has a different root, which means that entries were lost, and
// if the file does not hold a checkpoint of audit. It returns another error if the file
// or the tree cannot be read.
func (s *Service) compare() error {
	note, err := os.ReadFile(s.checkpointFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := s.env.Trust.Checkpoint(note)
	if err != nil {
		return fmt.Errorf("%w: the kept checkpoint: %w", errLost, err)
	}
	pos, _ := s.view.Position()
	if pos < c.Size {
		return fmt.Errorf("%w: the ledger has %d events, the last checkpoint %d", errLost, pos, c.Size)
	}
	root, err := translog.Root(c.Size, s.view.Tree.Node)
	if err != nil {
		return err
	}
	if root != c.Root {
		return fmt.Errorf("%w: the ledger is not the one of the last checkpoint", errLost)
	}
	return nil
}

// lost returns an error that wraps errLost if the ledger ends before sequence pos, up to
// which the view was built, or has a different entry there, and another error if the tree
// cannot be read. It returns nil if the view is empty or ctx is done.
func (s *Service) lost(ctx context.Context, pos uint64) error {
	last, err := s.env.Conn.Tail(ctx, bus.Events)
	if err != nil || pos == 0 {
		return nil // ctx is done, or the view is empty
	}
	if last < pos {
		return fmt.Errorf("%w: the ledger ends at %d, audit has read %d", errLost, last, pos)
	}
	return s.differs(ctx, pos)
}

// differs returns an error that wraps errLost unless the ledger's entry at pos is the
// one from which the view was built, and another error if the tree cannot be read. It
// retries while the ledger does not respond, because any other error of reading the
// entry counts as a loss, after which policy denies every call. If ctx is done first,
// differs returns nil.
func (s *Service) differs(ctx context.Context, pos uint64) error {
	var en eventlog.Entry
	err := eventlog.Retry(ctx, func() (err error) {
		en, err = s.env.Emit.Log.Get(ctx, pos)
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: entry %d, which audit has read before, cannot be read: %w", errLost, pos, err)
	}
	leaf, err := s.view.Tree.Node(0, pos-1)
	if err != nil {
		return fmt.Errorf("the tree: %w", err)
	}
	if leaf != translog.LeafHash(en.Data) {
		return fmt.Errorf("%w: entry %d is not the one that audit has read before", errLost, pos)
	}
	return nil
}

// alarm records on the ledger that entries are missing or replaced. From then on, policy
// denies every call and audit signs no checkpoints.
func (s *Service) alarm(ctx context.Context, why error) error {
	s.env.Log.Error("ledger alarm", "err", why)
	s.mu.Lock()
	s.truncated = why
	s.mu.Unlock()
	fact := events.LedgerTruncated{Reason: why.Error()}
	if note, err := os.ReadFile(s.checkpointFile()); err == nil {
		fact.Checkpoint = sign.Digest(note)
	}
	e := s.env.Emit.In(s.env.Cell.Tenant()).New(events.LedgerTruncatedName, "ledger", contract.Bytes(&fact), nil)
	return eventlog.Retry(ctx, func() error {
		_, err := s.env.Emit.Append(ctx, e)
		return err
	})
}

// checkpoint signs the current tree head if the tree has grown, or if the last
// checkpoint has no map of tips. The file is written before the checkpoint is published,
// so that the file is at least as new as every published checkpoint of the epoch.
// checkpoint returns nil without signing if there is nothing to sign, or if audit's key
// is not valid at the view's Lamport time. While audit must not sign checkpoints, the
// error is that of muted.
func (s *Service) checkpoint(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := muted(s.truncated, s.compared); err != nil {
		return err
	}
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	size, lamport, tips, err := s.view.Head()
	if err != nil {
		return err
	}
	if n := len(s.checkpoints); size == 0 || n > 0 && s.checkpoints[n-1].size >= size && s.checkpoints[n-1].tips {
		return nil
	}
	root, err := translog.Root(size, s.view.Tree.Node)
	if err != nil {
		return err
	}
	c := translog.Checkpoint{Origin: s.origin(), Size: size, Root: root, Extensions: []string{
		"durability " + s.Durability, fmt.Sprintf("epoch %d", s.epoch), fmt.Sprintf("lamport %d", lamport), "time " + contract.Time(s.env.Emit.Now()), translog.TipsExtension(tips)}}
	key := s.env.SignKey()
	if _, err := s.env.Trust.At(key.KID, "audit", contract.UseCheckpoint, lamport); err != nil {
		return nil // normally, the view has not applied the event that publishes the key yet
	}
	note := c.Sign(key)
	if err := private.Write(s.checkpointFile(), note); err != nil {
		return err
	}
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := s.env.Conn.JS.Publish(try, bus.LogSubject(logTenant(s.env), bus.CheckpointSubject), note); err != nil {
		return err
	}
	s.checkpoints = append(s.checkpoints, point{size: size, note: note, tips: true})
	return nil
}

// newest returns the newest checkpoint. If it covers fewer than size leaves, or has no
// map of tips, newest first signs a new one. It returns a checkpoint without a map only
// if no new one can be signed, and an error if no checkpoint covers size leaves.
func (s *Service) newest(ctx context.Context, size uint64) (*point, error) {
	p := s.last()
	if p == nil || p.size < size || !p.tips {
		err := s.checkpoint(ctx)
		if p = s.last(); err != nil && (p == nil || p.size < size) {
			return nil, err
		}
	}
	if p == nil || p.size < size {
		return nil, errors.New("no checkpoint covers the session yet")
	}
	return p, nil
}

// last returns a copy of the newest checkpoint, or nil if there is none.
func (s *Service) last() *point {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.checkpoints); n > 0 {
		p := s.checkpoints[n-1]
		return &p
	}
	return nil
}
