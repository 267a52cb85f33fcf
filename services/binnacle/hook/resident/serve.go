package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Listener returns the socket that Start has passed to this process.
func Listener() (*net.UnixListener, error) {
	f := os.NewFile(3, "socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("file 3 is not a socket that listens (%w); binnacle-hook starts this command", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("file 3 is not a unix socket; binnacle-hook starts this command"), l.Close())
	}
	return u, nil
}

// Handler answers a document. The context is canceled when the program that has sent it
// is gone.
type Handler func(ctx context.Context, doc []byte) Answer

// Serve answers the documents that processes of this user send to the socket l, concurrently. It
// returns when none arrived for the duration idle, when the file at path is no longer the socket,
// when the current folder was removed, or when ctx ends; and then only after the running handlers.
// It closes l, and removes the file at path if it is still the socket.
func Serve(ctx context.Context, l *net.UnixListener, path string, idle time.Duration, handle Handler) error {
	own, err := os.Stat(path)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	current := func() bool {
		now, err := os.Stat(path)
		return err == nil && os.SameFile(own, now)
	}
	removed := func() bool { // the current folder was removed
		var at syscall.Stat_t
		return syscall.Stat(".", &at) != nil || at.Nlink == 0
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var active atomic.Int64
	last := time.Now()
	for {
		if err := l.SetDeadline(time.Now().Add(min(idle, 5*time.Second))); err != nil {
			return nil // closed, because ctx has ended
		}
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			last = time.Now()
			active.Add(1)
			wg.Go(func() { defer active.Add(-1); serve(ctx, c, handle) })
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && active.Load() > 0:
			last = time.Now()
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Since(last) < idle && current() && !removed():
			continue
		}
		if current() {
			err = errors.Join(err, os.Remove(path))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			err = nil
		}
		return errors.Join(err, l.Close())
	}
}

// serve answers the document of one connection. It closes the connection
// without an answer if the process at the other end is another user's, or does
// not send a whole document within 10 s.
func serve(ctx context.Context, c *net.UnixConn, handle Handler) {
	defer c.Close()
	if checkPeer(c) != nil || c.SetReadDeadline(time.Now().Add(10*time.Second)) != nil {
		return
	}
	doc, err := readBlock(c, MaxDocument)
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = c.Read(make([]byte, 1)) // the program sends nothing more: it is gone, or has its answer
		cancel()
	}()
	answered := make(chan Answer, 1)
	go func() { answered <- handle(ctx, doc) }()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if _, err := c.Write([]byte{alive}); err != nil {
			cancel()
		}
		select {
		case <-tick.C:
		case a := <-answered:
			_ = writeAnswer(c, a)
			return
		}
	}
}

func writeAnswer(c *net.UnixConn, a Answer) error {
	if _, err := c.Write([]byte{done, byte(a.Exit)}); err != nil {
		return err
	}
	return errors.Join(writeBlock(c, []byte(a.Stdout)), writeBlock(c, []byte(a.Stderr)))
}
