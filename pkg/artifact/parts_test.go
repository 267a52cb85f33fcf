package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
)

func TestMain(m *testing.M) { endless.Run(m, 5*time.Second) }

// observed is a Store that records the parts that are read, and, unless release is nil, stores no
// part after the first one until release is closed.
type observed struct {
	memory
	release chan struct{}

	lock    sync.Mutex
	read    []string
	storing int
}

func (o *observed) Get(ctx context.Context, key string) ([]byte, error) {
	o.lock.Lock()
	o.read = append(o.read, key[strings.LastIndexByte(key, '.')+1:])
	o.lock.Unlock()
	return o.memory.Get(ctx, key)
}

func (o *observed) Put(ctx context.Context, key string, part []byte) error {
	if o.release != nil && !strings.HasSuffix(key, ".0") {
		o.lock.Lock()
		o.storing++
		o.lock.Unlock()
		<-o.release
	}
	return o.memory.Put(ctx, key, part)
}

// taken returns the parts that were read since its last call, sorted.
func (o *observed) taken() string {
	synctest.Wait()
	o.lock.Lock()
	defer o.lock.Unlock()
	slices.Sort(o.read)
	defer func() { o.read = nil }()
	return strings.Join(o.read, " ")
}

// TestAhead checks which parts a reader fetches: three in advance from the beginning and while
// parts are read in order, none in advance after a seek to another part, and none beyond the
// end.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := random(9*PartSize + 5)
		o := &observed{}
		obj, err := Write(t.Context(), o, "t", "gateway", "", 0, bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), o, obj)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if got := o.taken(); got != "index-0" {
			t.Errorf("to open: %s", got)
		}
		for _, x := range []struct {
			part int
			want string // parts that are fetched
		}{{0, "0 1 2 3"}, {0, ""}, {1, "4"}, {2, "5"}, {7, "7"}, {8, "8 9"}, {9, ""}, {3, "3"}, {1, "1"}} {
			at := int64(x.part)*PartSize + 2
			var b [3]byte
			if _, err := r.Seek(at, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, b[:]); err != nil || !bytes.Equal(b[:], content[at:at+3]) {
				t.Errorf("part %d: %x, %v; want %x", x.part, b, err, content[at:at+3])
			}
			if got := o.taken(); got != x.want {
				t.Errorf("part %d: fetched %q, want %q", x.part, got, x.want)
			}
		}
	})
}

// TestStoring checks that a writer stores inFlight parts at a time, and no more.
func TestStoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &observed{release: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := Write(t.Context(), o, "t", "gateway", "", 0, bytes.NewReader(random(9*PartSize)))
			done <- err
		}()
		synctest.Wait()
		o.lock.Lock()
		storing := o.storing
		o.lock.Unlock()
		if storing != inFlight {
			t.Errorf("%d parts are being stored, want %d", storing, inFlight)
		}
		close(o.release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLongIndex checks the index of content with about as many parts as one part of the index has
// digests, and with more: in how many parts it is stored, that it is read as a whole, and that it
// is not read further than the size of the content permits.
func TestLongIndex(t *testing.T) {
	for _, x := range []struct{ digests, stored int }{{PartSize/sha256.Size - 1, 1}, {PartSize / sha256.Size, 1}, {PartSize/sha256.Size + 1, 2}, {2 * PartSize / sha256.Size, 2}} {
		o := &observed{}
		w := NewWriter(t.Context(), o, "t", "gateway", "u-x", 0)
		w.index = random(x.digests * sha256.Size) // as after the parts were stored
		w.object.Size = int64(x.digests) * PartSize
		obj, err := w.Close()
		if err != nil || len(o.parts) != x.stored {
			t.Errorf("%d digests: %d parts, %v", x.digests, len(o.parts), err)
		}
		r, err := Open(t.Context(), o, obj)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r.index, w.index) {
			t.Errorf("%d digests: another index", x.digests)
		}
		_ = r.Close()
		o.parts[indexKey(w.prefix, 0)] = random(3 * PartSize)
		o.read = nil
		if _, err := Open(t.Context(), o, obj); !errors.Is(err, ErrCorrupt) || len(o.read) != 1 {
			t.Errorf("%d digests, an index that is too long: %v, %d parts read", x.digests, err, len(o.read))
		}
	}
}

// TestFull checks that the stream refuses a part that exceeds its limit and reports the room
// that is left, that parts can be stored after the limit was removed, and that a limit is
// applied to a stream that exists.
func TestFull(t *testing.T) {
	m := meshtest.Start(t, []bus.Declaration{{Service: "gateway", Artifacts: true}})
	s, admin := Stream{Conn: m.Connect(t, "gateway")}, m.Connect(t, "provision")
	limit := func(most int64) {
		t.Helper()
		if err := bus.LimitArtifacts(t.Context(), admin.JS, most); err != nil {
			t.Fatal(err)
		}
		if err := bus.Provision(t.Context(), admin.JS, nil, 1); err != nil {
			t.Errorf("with a limit of %d bytes: %v", most, err)
		}
	}
	if room, err := s.Room(t.Context()); err != nil || room != math.MaxInt64 {
		t.Errorf("room without a limit: %d, %v", room, err)
	}
	limit(2 * PartSize)
	if _, err := Write(t.Context(), s, "t", "gateway", "", 0, bytes.NewReader(random(PartSize))); err != nil {
		t.Fatal(err)
	}
	if room, err := s.Room(t.Context()); err != nil || room <= 0 || room >= PartSize {
		t.Errorf("room: %d, %v", room, err)
	}
	for range 2 {
		if _, err := Write(t.Context(), s, "t", "gateway", "", 0, bytes.NewReader(random(PartSize))); !errors.Is(err, ErrFull) {
			t.Errorf("in a full stream: %v", err)
		}
	}
	limit(0)
	if _, err := Write(t.Context(), s, "t", "gateway", "", 0, bytes.NewReader(random(PartSize))); err != nil {
		t.Error(err)
	}
}

// TestUploads checks the ids of uploads: a new one each time, and for the content in a call's
// arguments one that depends on the call.
func TestUploads(t *testing.T) {
	if a, b := NewUpload(""), NewUpload(""); a == b || IsInline(a) || !strings.HasPrefix(a, contract.IDUpload) {
		t.Error(a, b)
	}
	seen := map[string]string{}
	for _, call := range [][3]string{{"t", "s", "c"}, {"t", "s", "d"}, {"t", "sc", ""}, {"ts", "", "c"}} {
		id := InlineUpload(call[0], call[1], call[2], "")
		if id != InlineUpload(call[0], call[1], call[2], "") || !IsInline(id) || seen[id] != "" || (&Object{Upload: id, Digest: "sha256:" + strings.Repeat("0", 64), Index: "sha256:" + strings.Repeat("0", 64)}).Valid() != nil {
			t.Errorf("%v: %s, also of %s", call, id, seen[id])
		}
		seen[id] = fmt.Sprint(call)
	}
}
