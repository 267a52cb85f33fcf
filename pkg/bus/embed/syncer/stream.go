package syncer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/boot"
)

// stream syncs the files of one stream. The server appends the stream's messages to a
// file, the block, and begins another block when it is full. It writes a message to its
// block before it acknowledges it.
//
// If no message is ever removed, the server does not change the earlier blocks except
// that it replaces each of them by a compressed one, which it syncs before it renames it.
// After a removal it may also delete a block, or replace it by one that it has not
// synced.
type stream struct {
	dir     string // the stream's folder
	root    string // folder of all of the server's files, which contains dir
	removed bool   // whether messages of the stream are removed

	known   bool
	index   int       // number of the open block
	block   *os.File  // the open block
	size    int64     // size of the open block when it was last synced
	changed time.Time // when the entries of the blocks' folder had changed, before all blocks were synced last
}

// sync syncs every message that is stored when it begins. It does nothing if
// the stream does not exist or has no messages.
func (x *stream) sync() error {
	if x.removed {
		return x.syncChanged()
	}
	if !x.known {
		if err := x.begin(); err != nil || !x.known {
			return err
		}
	}
	for moved := false; ; moved = true {
		// The next block is looked for before the open one is synced: if it exists, the
		// open one is complete.
		next, err := exists(x.path(x.index + 1))
		if err != nil {
			return err
		}
		if err := x.syncBlock(); err != nil {
			return err
		}
		if next {
			if err := boot.SyncPath(x.path(x.index)); err != nil { // the server may have replaced the block
				return err
			}
			x.closeBlock()
			x.index++
			continue
		}
		if !x.current() { // the stream was deleted and created again
			x.closeBlock()
			x.known = false
			return x.sync()
		}
		if moved {
			// The folder has entries of new blocks. An entry of a block that the server has
			// replaced may still name the old block on disk, which may not be synced.
			return boot.SyncPath(filepath.Join(x.dir, "msgs"))
		}
		return nil
	}
}

// recent is the time for which a change of a folder's entries may be followed by others
// that give the folder the same time of modification.
const recent = time.Second

// syncChanged is sync for a stream of which messages are removed. It syncs all blocks if
// one may have been added, deleted or replaced since the last time, and otherwise only
// the open one.
func (x *stream) syncChanged() error {
	info, err := os.Stat(filepath.Join(x.dir, "msgs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if at := info.ModTime(); !x.known || !at.Equal(x.changed) || time.Since(at) < recent {
		x.closeBlock()
		x.known, x.changed = false, at
		if err := x.begin(); err != nil || !x.known {
			return err
		}
	}
	err = x.syncBlock()
	if errors.Is(err, os.ErrNotExist) { // the block was deleted meanwhile, so another one is open
		return x.syncChanged()
	}
	return err
}

// current reports whether the open file of the block is still the one at the
// block's path.
func (x *stream) current() bool {
	named, err := os.Stat(x.path(x.index))
	if err != nil {
		return false
	}
	open, err := x.block.Stat()
	return err == nil && os.SameFile(named, open)
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// begin syncs all files of the stream and the folders that contain it, and
// sets known. It does nothing if the stream has no messages.
func (x *stream) begin() error {
	blocks, err := blocksOf(x.dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(blocks) == 0 {
		return nil // the stream has no messages
	}
	if err != nil {
		return err
	}
	x.index = blocks[len(blocks)-1]
	if err := boot.Sync(x.dir); err != nil {
		return err
	}
	for dir := x.dir; dir != x.root && dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		if err := boot.SyncPath(dir); err != nil {
			return err
		}
	}
	x.known = true
	return nil
}

// syncBlock syncs the open block if it has grown since it was last synced.
func (x *stream) syncBlock() error {
	if x.block == nil {
		f, err := os.Open(x.path(x.index))
		if err != nil {
			return err
		}
		x.block, x.size = f, -1
	}
	info, err := x.block.Stat()
	if err != nil || info.Size() == x.size {
		return err
	}
	if err := x.block.Sync(); err != nil {
		return err
	}
	x.size = info.Size() // read before the sync: what was written during it is synced next time
	return nil
}

func (x *stream) path(index int) string {
	return filepath.Join(x.dir, "msgs", fmt.Sprintf("%d.blk", index))
}

func (x *stream) closeBlock() {
	if x.block != nil {
		_ = x.block.Close() // opened for reading, so Close has nothing to write
		x.block = nil
	}
}
