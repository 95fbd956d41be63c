package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Messages that were acknowledged, by place; what the followers wait for at the end.
var (
	sentTo   []atomic.Int64
	sentOnce sync.Once
	paused   = make(chan struct{}) // closed when nothing more is sent
)

func prepareTail() { sentOnce.Do(func() { sentTo = make([]atomic.Int64, places()) }) }

// pace sends messages at a constant rate to one place after the other, over one connection. A message has the time
// it was sent in its body.
func pace(deadline time.Time, res *result) {
	prepareTail()
	defer close(paused)
	c, err := connect(5 * time.Second)
	if err != nil {
		res.fail = err.Error()
		return
	}
	defer c.Close()
	c.SetDeadline(deadline)
	tpl := make([]*template, places())
	for q := range tpl {
		tpl[q] = sendTemplate(q, 0, false)
	}
	answered := make(chan struct{})
	var written atomic.Int64
	go func() {
		defer close(answered)
		rd := &reader{c: c, buf: make([]byte, 128<<10)}
		for got := int64(0); !(stopping.Load() && got == written.Load()); {
			if err := rd.fill(); err != nil {
				if !(stopping.Load() && got == written.Load()) {
					res.fail = "read: " + err.Error()
				}
				return
			}
			for {
				typ, hdr, _, ok, err := rd.next()
				if err != nil {
					res.fail = err.Error()
					return
				}
				if !ok {
					break
				}
				code, op, ok := parseTop(typ, hdr)
				if !ok || op < opaqueBase {
					continue
				}
				got++
				if code != respSuccess {
					res.refused(code, measuring.Load(), typ, hdr)
					continue
				}
				res.acked++
				sentTo[int(op-opaqueBase)%len(tpl)].Add(1)
			}
		}
	}()
	began := time.Now()
	var number int64
	var out []byte
	for !stopping.Load() && res.fail == "" {
		due := int64(time.Since(began).Seconds() * *rate)
		for ; number < due; number++ {
			t := tpl[number%int64(len(tpl))]
			out = t.write(out, opaqueBase+uint32(number), uint64(time.Now().UnixNano()))
		}
		if len(out) > 0 {
			written.Store(number)
			if _, err := c.Write(out); err != nil {
				res.fail = "write: " + err.Error()
				return
			}
			out = out[:0]
		}
		time.Sleep(500 * time.Microsecond)
	}
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	<-answered
}

// follow holds one pull for each of its places and takes what comes, until it has all that was sent there. With
// fewer connections than places they share them out; with more, several follow the same place.
func follow(id int, at0 []int64, deadline time.Time, res *result) {
	prepareTail()
	var mine []int
	for q := id; q < len(at0); q += *conns {
		mine = append(mine, q)
	}
	if len(mine) == 0 {
		mine = []int{id % len(at0)}
	}
	c, err := connect(30 * time.Second)
	if err != nil {
		res.fail = err.Error()
		return
	}
	defer c.Close()
	c.SetDeadline(deadline)
	n := len(mine)
	tpl := make([]*template, n)
	at := make([]int64, n)
	var out []byte
	put := func(slot int, op uint32) {
		out = tpl[slot].write(out, op, uint64(at[slot]))
	}
	for i, q := range mine {
		tpl[i] = newTemplate(codePull, pullExt(q, markOff), nil)
		at[i] = at0[q]
		put(i, opaqueBase+uint32(i))
	}
	var got atomic.Int64
	complete := func() bool {
		select {
		case <-paused:
		default:
			return false
		}
		var sent int64
		for _, q := range mine {
			sent += sentTo[q].Load()
		}
		return got.Load() >= sent
	}
	// Once nothing more is sent, the one who has everything is woken from his last read.
	go func() {
		<-paused
		for i := 0; i < 100 && !complete(); i++ {
			time.Sleep(100 * time.Millisecond)
		}
		c.SetDeadline(time.Now())
	}()
	rd := &reader{c: c, buf: make([]byte, 4<<10)}
	var now int64
	meas := false
	each := func(body []byte) {
		ns, err := strconv.ParseInt(string(body[:16]), 16, 64)
		if err != nil && res.fail == "" {
			res.fail = fmt.Sprintf("body %q has no time", body[:16])
		}
		if meas {
			res.h.add(now - ns)
		}
	}
	for {
		if len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				if !complete() {
					res.fail = "write: " + err.Error()
				}
				return
			}
			out = out[:0]
		}
		if err := rd.fill(); err != nil {
			if os.IsTimeout(err) || complete() {
				return // what is missing is found by counting
			}
			res.fail = "read: " + err.Error()
			return
		}
		now, meas = time.Now().UnixNano(), measuring.Load()
		for {
			typ, hdr, body, ok, err := rd.next()
			if err != nil {
				res.fail = err.Error()
				return
			}
			if !ok {
				break
			}
			code, op, ok := parseTop(typ, hdr)
			if !ok || op < opaqueBase {
				continue
			}
			slot := int(op-opaqueBase) % n
			switch code {
			case respSuccess:
				k, bb, next, err := walk(body, at[slot], 16, each)
				if err != nil {
					res.fail = "pulled: " + err.Error()
					return
				}
				at[slot] = next
				res.acked += int64(k)
				got.Add(int64(k))
				if meas {
					res.msgs += int64(k)
					res.bytes += bb
					res.pulls++
				}
			case respNotFound, respRetryNow:
				res.empties++
			default:
				res.refused(code, meas, typ, hdr)
			}
			put(slot, op)
		}
	}
}

// expectedDeliveries: every message once for each connection that follows its place.
func expectedDeliveries() (total int64) {
	for q := range sentTo {
		followers := int64(1)
		if *conns > len(sentTo) {
			followers = int64((*conns-1-q)/len(sentTo) + 1)
		}
		total += followers * sentTo[q].Load()
	}
	return
}
