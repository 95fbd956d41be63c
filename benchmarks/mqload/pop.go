package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	codePop         = 200050
	codeAck         = 200051
	codePollingInfo = 200055
	codeBatchAck    = 200151

	respPollingFull    = 209
	respPollingTimeout = 210
)

// A group that has popped all there is gives way to a new one, which begins with the first message.
var popGroups atomic.Int64

func popGroup(number int64) string { return fmt.Sprintf("%s_%d_%d", *group, os.Getpid(), number) }

func popExt(group string, pollMs int) []kv {
	return []kv{
		{"consumerGroup", group}, {"topic", *topic}, {"queueId", "-1"}, {"maxMsgNums", strconv.Itoa(*maxNums)},
		{"invisibleTime", strconv.Itoa(*invisible)}, {"pollTime", strconv.Itoa(pollMs)},
		{"bornTime", strconv.FormatInt(time.Now().UnixMilli(), 10)}, {"initMode", "0"}, {"order", "false"},
	}
}

// popper pops and acknowledges, one after the other. With --ack=false it stops when --prefill messages are popped by all.
func popper(deadline time.Time, popped *atomic.Int64, res *result) {
	cl, err := dial()
	if err != nil {
		res.fail = err.Error()
		return
	}
	defer cl.c.Close()
	for !stopping.Load() && time.Now().Before(deadline) && (*ack || popped.Load() < *prefill) {
		number, began := popGroups.Load(), time.Now()
		group := popGroup(number)
		rc, ext, remark, body, err := cl.call(codePop, popExt(group, 0), nil)
		if err != nil {
			res.fail = "pop: " + err.Error()
			return
		}
		if rc == respPollingTimeout {
			res.empties++
			if *ack {
				popGroups.CompareAndSwap(number, number+1)
			}
			continue
		}
		if rc != respSuccess {
			res.fail = fmt.Sprintf("pop: code %d %s", rc, remark)
			return
		}
		places, count, err := placesOf(ext, body)
		if err != nil {
			res.fail = err.Error()
			return
		}
		popped.Add(int64(count))
		if *ack {
			if err := cl.acknowledge(group, ext, places); err != nil {
				res.fail = err.Error()
				return
			}
		}
		res.acked += int64(count)
		if measuring.Load() {
			res.pulls++
			res.msgs += int64(count)
			res.bytes += int64(count * *bodySize)
			res.h.add(int64(time.Since(began)))
		}
	}
}

type place struct {
	kind, queue string
	start       int64
	offsets     []int64
}

// placesOf: the queues of an answer, with their messages; an error if its records are not those, or came before.
func placesOf(ext map[string]string, body []byte) (found []place, count int, err error) {
	starts := map[string]int64{}
	for _, one := range strings.Split(ext["startOffsetInfo"], ";") {
		parts := strings.Split(one, " ")
		if len(parts) != 3 {
			return nil, 0, fmt.Errorf("startOffsetInfo %q", one)
		}
		starts[parts[0]+" "+parts[1]], _ = strconv.ParseInt(parts[2], 10, 64)
	}
	for _, one := range strings.Split(ext["msgOffsetInfo"], ";") {
		parts := strings.Split(one, " ")
		if len(parts) != 3 {
			return nil, 0, fmt.Errorf("msgOffsetInfo %q", one)
		}
		p := place{kind: parts[0], queue: parts[1], start: starts[parts[0]+" "+parts[1]]}
		for _, text := range strings.Split(parts[2], ",") {
			offset, _ := strconv.ParseInt(text, 10, 64)
			p.offsets = append(p.offsets, offset)
		}
		if p.kind != "0" {
			return nil, 0, fmt.Errorf("a message came again: %q", one)
		}
		count += len(p.offsets)
		found = append(found, p)
	}
	records := 0
	for len(body) >= 4 {
		size := int(binary.BigEndian.Uint32(body))
		if size < 91 || size > len(body) {
			return nil, 0, fmt.Errorf("a record of %d bytes", size)
		}
		body = body[size:]
		records++
	}
	if records != count {
		return nil, 0, fmt.Errorf("%d records, %d offsets", records, count)
	}
	return
}

func (cl *client) acknowledge(group string, ext map[string]string, places []place) error {
	var rc int
	var remark string
	var err error
	if *maxNums == 1 {
		p := places[0]
		offset := strconv.FormatInt(p.offsets[0], 10)
		handle := strings.Join([]string{strconv.FormatInt(p.start, 10), ext["popTime"], ext["invisibleTime"],
			ext["reviveQid"], p.kind, *brokerName, p.queue, offset}, " ")
		rc, _, remark, _, err = cl.call(codeAck, []kv{{"consumerGroup", group}, {"topic", *topic},
			{"queueId", p.queue}, {"extraInfo", handle}, {"offset", offset}}, nil)
	} else {
		rc, _, remark, _, err = cl.call(codeBatchAck, nil, batchAck(group, ext, places))
	}
	if err == nil && rc != respSuccess {
		err = fmt.Errorf("ack: code %d %s", rc, remark)
	}
	return err
}

func batchAck(group string, ext map[string]string, places []place) []byte {
	number := func(name string) int64 {
		value, _ := strconv.ParseInt(ext[name], 10, 64)
		return value
	}
	var acks []map[string]any
	for _, p := range places {
		var bits []byte
		for _, offset := range p.offsets {
			at := int(offset - p.start)
			for len(bits) <= at/8 {
				bits = append(bits, 0)
			}
			bits[at/8] |= 1 << (at % 8)
		}
		queue, _ := strconv.Atoi(p.queue)
		acks = append(acks, map[string]any{"b": base64.StdEncoding.EncodeToString(bits), "c": group,
			"it": number("invisibleTime"), "pt": number("popTime"), "q": queue, "r": p.kind,
			"rq": number("reviveQid"), "so": p.start, "t": *topic})
	}
	body, _ := json.Marshal(map[string]any{"brokerName": *brokerName, "acks": acks})
	return body
}

// ---------------------------------------------------------------- polls

const pollsOfGroup = 1000 // Java lets 1024 wait for a queue

// polls has --conns connections wait with --inflight pops each, then sends as many messages as a group has pops: each wakes
// one of every group.
func polls(cl *client, cpu func() float64) map[string]any {
	total := *conns * *inflight
	groups := (total + pollsOfGroup - 1) / pollsOfGroup
	pollMs := int((*seconds+*warmup)*1000) + 60000
	var woken sync.WaitGroup
	var empty, failed atomic.Int64
	*maxNums = 1
	for c := 0; c < *conns; c++ {
		waiting, err := dial()
		if err != nil {
			die("connect: %v", err)
		}
		defer waiting.c.Close()
		for i := 0; i < *inflight; i++ {
			group := popGroup(int64((c**inflight + i) % groups))
			waiting.opaque++
			if _, err := waiting.c.Write(newTemplate(codePop, popExt(group, pollMs), nil).write(nil, waiting.opaque, 0)); err != nil {
				die("pop: %v", err)
			}
		}
		woken.Add(1)
		go func() {
			defer woken.Done()
			for i := 0; i < *inflight; i++ {
				typ, hdr, _, err := waiting.read()
				if err != nil {
					failed.Add(1)
					return
				}
				if code, _, _ := parseTop(typ, hdr); code != respSuccess {
					empty.Add(1)
				}
			}
		}()
	}
	parked := func() (number int64) {
		for g := 0; g < groups; g++ {
			ext := []kv{{"consumerGroup", popGroup(int64(g))}, {"topic", *topic}, {"queueId", "-1"}}
			rc, answer, remark, _, err := cl.call(codePollingInfo, ext, nil)
			if err != nil || rc != 0 {
				die("polling info: code %d %s %v", rc, remark, err)
			}
			n, _ := strconv.ParseInt(answer["pollingNum"], 10, 64)
			number += n
		}
		return
	}
	for began := time.Now(); parked() < int64(total); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 60*time.Second {
			die("only %d of %d polls wait", parked(), total)
		}
	}
	began, cpu0 := time.Now(), cpu()
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	idle := (cpu() - cpu0) / time.Since(began).Seconds()
	began, cpu0 = time.Now(), cpu()
	var res result
	sender(0, 16, false, int64((total+groups-1)/groups), time.Now().Add(2*time.Minute), &res)
	woken.Wait()
	took := time.Since(began).Seconds()
	return map[string]any{"polls": total, "groups": groups, "idle_cores": round(idle, 10000),
		"woken_per_s": round(float64(total)/took, 1), "cpu_us_per_msg": round((cpu()-cpu0)*1e6/float64(total), 100),
		"empty": empty.Load(), "failed": failed.Load(), "ok": failed.Load() == 0 && empty.Load() == 0 && res.fail == ""}
}
