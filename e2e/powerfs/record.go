// Package powerfs simulates losses of power. A Recorder is a file system (FUSE) that records
// every change and every sync of its files. Images constructs from the record what a disk
// may hold if the power is lost at a given point: everything that was synced, and any part
// of the rest. The file system is served by a process of its own, since a process must not
// start other processes while it uses files that it serves itself.
package powerfs

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// kind is what an op changes or syncs.
type kind int

const (
	opWrite    kind = iota // Data at Off in the file ID
	opTruncate             // the file ID has the size Off
	opEntry                // the entry Name of the folder Dir is ID; the entry From, if set, of the folder FromDir is removed
	opRemove               // the entry Name of the folder Dir is removed
	opSync                 // what the ops before UpTo did to the file or folder ID is synced
)

// op is one change, or a sync. Its fields are exported for package gob.
type op struct {
	Kind         kind
	ID           int
	Dir, FromDir int
	Name, From   string
	Folder       bool // of opEntry: ID is a new folder
	Off          int64
	Data         []byte
	UpTo         int
}

// recorder is the file system.
type recorder struct {
	sync time.Duration // minimum duration of a sync

	mu   sync.Mutex
	log  []op
	ids  map[uint64]int // id of the file or folder by the number of its inode
	next int
}

// root is the id of the root folder.
const root = 0

// Serve mounts a file system at dir whose files are stored in the empty folder store, and
// writes a line to out. Each sync takes at least the given time. Then it responds to the lines
// of in: to "now" with the number of ops that were recorded so far, and to any other line by
// writing the ops to the file that the line names, and an empty line to out. At the end of in,
// or after an error, it unmounts the file system. It runs in the process that Mount starts.
func Serve(dir, store string, sync time.Duration, in io.Reader, out io.Writer) error {
	r := &recorder{sync: sync, ids: map[uint64]int{}, next: root + 1}
	var st syscall.Stat_t
	if err := syscall.Stat(store, &st); err != nil {
		return err
	}
	data := &fs.LoopbackRoot{Path: store, Dev: uint64(st.Dev)}
	data.NewNode = func(*fs.LoopbackRoot, *fs.Inode, string, *syscall.Stat_t) fs.InodeEmbedder { //nolint:staticcheck // deprecated, but also called for new files
		return &node{LoopbackNode: fs.LoopbackNode{RootData: data}, r: r}
	}
	top := &node{LoopbackNode: fs.LoopbackNode{RootData: data}, r: r, top: true}
	data.RootNode = top
	if _, err := fs.Mount(dir, top, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "powerfs"}, NullPermissions: true}); err != nil {
		return fmt.Errorf("the FUSE file system that simulates losses of power cannot be mounted: %w", err)
	}
	fmt.Fprintln(out, "mounted")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if lines.Text() == "now" {
			fmt.Fprintln(out, r.now())
			continue
		}
		if err := r.dump(lines.Text()); err != nil {
			return errors.Join(err, unmount(dir))
		}
		fmt.Fprintln(out)
	}
	return unmount(dir)
}

// unmount unmounts the file system without the program fusermount, which Server.Unmount
// needs. Files that are still open, such as a log, no longer work when the process ends.
func unmount(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// now returns the number of ops that were recorded so far.
func (r *recorder) now() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.log)
}

// dump writes the ops to a file.
func (r *recorder) dump(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(r.log), f.Close())
}

// add records an op. The caller holds mu.
func (r *recorder) add(o op) { r.log = append(r.log, o) }

// synced records a sync of a file or folder. The sync does not include the ops that are
// recorded while it takes place.
func (r *recorder) synced(id int) {
	upTo := r.now()
	time.Sleep(r.sync)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(op{Kind: opSync, ID: id, UpTo: upTo})
}

// node is a file or folder.
type node struct {
	fs.LoopbackNode
	r   *recorder
	top bool
}

// id returns the node's id. The caller holds mu.
func (n *node) id() int {
	if n.top {
		return root
	}
	return n.r.ids[n.StableAttr().Ino]
}

// named gives a new file or folder its id, and records its entry. The caller holds mu.
func (n *node) named(child *fs.Inode, name string, folder bool) int {
	id := n.r.next
	n.r.next++
	n.r.ids[child.StableAttr().Ino] = id
	n.r.add(op{Kind: opEntry, Dir: n.id(), Name: name, ID: id, Folder: folder})
	return id
}

// Create implements fs.NodeCreater.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	child, f, fl, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_APPEND, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, &file{handle: f.(handle), r: n.r, id: n.named(child, name, false)}, fl, 0
}

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	f, fl, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	if flags&syscall.O_TRUNC != 0 {
		n.r.add(op{Kind: opTruncate, ID: n.id()})
	}
	return &file{handle: f.(handle), r: n.r, id: n.id()}, fl, 0
}

// Mkdir implements fs.NodeMkdirer.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	child, errno := n.LoopbackNode.Mkdir(ctx, name, mode, out)
	if errno == 0 {
		n.named(child, name, true)
	}
	return child, errno
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.remove(name, func() syscall.Errno { return n.LoopbackNode.Unlink(ctx, name) })
}

// Rmdir implements fs.NodeRmdirer.
func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	return n.remove(name, func() syscall.Errno { return n.LoopbackNode.Rmdir(ctx, name) })
}

func (n *node) remove(name string, do func() syscall.Errno) syscall.Errno {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	errno := do()
	if errno == 0 {
		n.r.add(op{Kind: opRemove, Dir: n.id(), Name: name})
	}
	return errno
}

// Rename implements fs.NodeRenamer.
func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	moved, ok := n.GetChild(name).Operations().(*node)
	if !ok {
		return syscall.ENOTSUP
	}
	errno := n.LoopbackNode.Rename(ctx, name, to, newName, flags)
	if errno == 0 {
		n.r.add(op{Kind: opEntry, Dir: to.(*node).id(), Name: newName, ID: moved.id(), FromDir: n.id(), From: name})
	}
	return errno
}

// Link implements fs.NodeLinker.
func (n *node) Link(context.Context, fs.InodeEmbedder, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

// Symlink implements fs.NodeSymlinker.
func (n *node) Symlink(context.Context, string, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

// CopyFileRange implements fs.NodeCopyFileRanger.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOTSUP
}

// Setattr implements fs.NodeSetattrer.
func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	if h, ok := f.(*file); ok {
		f = h.handle
	}
	errno := n.LoopbackNode.Setattr(ctx, f, in, out)
	if size, ok := in.GetSize(); ok && errno == 0 {
		n.r.add(op{Kind: opTruncate, ID: n.id(), Off: int64(size)})
	}
	return errno
}

// OpendirHandle implements fs.NodeOpendirHandler.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, fl, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &folder{f.(entries), n}, fl, 0
}

// entries is the interface of a LoopbackNode's handle of a folder.
type entries interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
}

// folder is an open folder.
type folder struct {
	entries
	n *node
}

// Fsyncdir implements fs.FileFsyncdirer.
func (f *folder) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return f.n.Fsync(ctx, nil, flags)
}

// Fsync implements fs.NodeFsyncer, for files and folders.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.r.mu.Lock()
	id := n.id()
	n.r.mu.Unlock()
	n.r.synced(id)
	return 0
}

// handle is the interface of a LoopbackNode's handle of a file.
type handle interface {
	fs.FileReader
	fs.FileWriter
	fs.FileFlusher
	fs.FileReleaser
	fs.FileGetattrer
	fs.FileSetattrer
	fs.FileLseeker
}

// file is an open file.
type file struct {
	handle
	r  *recorder
	id int
}

// Write implements fs.FileWriter.
func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	n, errno := f.handle.Write(ctx, data, off)
	if errno == 0 {
		f.r.add(op{Kind: opWrite, ID: f.id, Off: off, Data: append([]byte(nil), data[:n]...)})
	}
	return n, errno
}

// Fsync implements fs.FileFsyncer.
func (f *file) Fsync(context.Context, uint32) syscall.Errno {
	f.r.synced(f.id)
	return 0
}
