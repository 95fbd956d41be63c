// The official Go client of RocketMQ 5: each kind of message, sent and received. Prints one line of JSON.
//
// grpcclient host:port
//
// All steps run at once. An error of one is in its report.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	count     = 20
	limit     = 2 * time.Minute
	invisible = 10 * time.Second
	delayed   = 5 * time.Second
)

type report = map[string]any

func main() {
	steps := map[string]func() report{
		"normal": normal, "fifo": fifo, "delay": delay, "transaction": transaction, "push": push,
		"invisible": changeInvisible, "refused": refused,
	}
	reports := map[string]report{}
	var mu sync.Mutex
	var open sync.WaitGroup
	for name, step := range steps {
		open.Add(1)
		go func() {
			defer open.Done()
			found := caught(step)
			mu.Lock()
			defer mu.Unlock()
			reports[name] = found
		}()
	}
	open.Wait()
	out, err := json.Marshal(reports)
	check(err)
	fmt.Println(string(out))
}

// ---------------------------------------------------------------- the steps

func normal() report {
	consumer := simple("go-normal", "odd")
	defer consumer.GracefulStop()
	send("go-normal", count, nil)
	found := receive(consumer, count/2, ack(consumer))
	slices.SortFunc(found, func(a, b *rmq.MessageView) int { return number(a) - number(b) })
	first := found[0]
	return report{
		"bodies": bodies(found), "properties": first.GetProperties(), "keys": first.GetKeys(), "tag": *first.GetTag(),
		"attempt": first.GetDeliveryAttempt(),
	}
}

func fifo() report {
	heard := &listener{times: map[string]int{}, attempts: map[string]int32{}}
	heard.listen("go-fifo")
	send("go-fifo", count, func(n int, m *rmq.Message) { m.SetMessageGroup(fmt.Sprintf("group-%d", n%2)) })
	heard.await(func() bool { return len(heard.times) == count })
	heard.mu.Lock()
	defer heard.mu.Unlock()
	orders := map[string][]int{}
	for _, body := range heard.order {
		n, err := strconv.Atoi(strings.Fields(body)[1])
		check(err)
		kind := []string{"even", "odd"}[n%2]
		orders[kind] = append(orders[kind], n)
	}
	return report{"even": orders["even"], "odd": orders["odd"]}
}

func delay() report {
	consumer := simple("go-delay", "*")
	defer consumer.GracefulStop()
	due := time.Now().Add(delayed)
	send("go-delay", 1, func(_ int, m *rmq.Message) { m.SetDelayTimestamp(due) })
	found := receive(consumer, 1, ack(consumer))
	early := time.Until(due) > time.Second // the timer counts in seconds
	return report{"bodies": bodies(found), "in_time": !early}
}

func transaction() report {
	consumer := simple("go-txn", "*")
	defer consumer.GracefulStop()
	var mu sync.Mutex
	asked := map[string]bool{}
	producer := produce("go-txn", rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(m *rmq.MessageView) rmq.TransactionResolution {
			mu.Lock()
			defer mu.Unlock()
			asked[string(m.GetBody())] = true
			return rmq.COMMIT
		},
	}))
	defer producer.GracefulStop()
	for n := 0; n < 3; n++ {
		begun := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message("go-txn", n), begun)
		check(err)
		switch n {
		case 0:
			check(begun.Commit())
		case 1:
			check(begun.RollBack()) // the third is not ended: the broker asks
		}
	}
	found := receive(consumer, 2, ack(consumer))
	mu.Lock()
	defer mu.Unlock()
	return report{"bodies": bodies(found), "asked": keys(asked)}
}

func push() report {
	heard := &listener{times: map[string]int{}, attempts: map[string]int32{}, fails: 1}
	heard.listen("go-push")
	send("go-push", 3, nil)
	heard.await(func() bool {
		again := 0
		for _, times := range heard.times {
			if times >= 2 {
				again++
			}
		}
		return again == 3
	})
	heard.mu.Lock()
	defer heard.mu.Unlock()
	return report{"times": heard.times, "attempts": heard.attempts}
}

func changeInvisible() report {
	consumer := simple("go-invisible", "*")
	defer consumer.GracefulStop()
	send("go-invisible", 1, nil)
	first := receive(consumer, 1, func(m *rmq.MessageView) { check(consumer.ChangeInvisibleDuration(m, invisible)) })
	second := receive(consumer, 1, ack(consumer))
	return report{"attempts": []int32{first[0].GetDeliveryAttempt(), second[0].GetDeliveryAttempt()}}
}

func refused() report {
	producer := produce("go-normal")
	defer producer.GracefulStop()
	_, err := producer.Send(context.Background(), message("go-nowhere", 0))
	if status, is := rmq.AsErrRpcStatus(err); is {
		return report{"topic": status.GetCode()}
	}
	return report{"topic": fmt.Sprint(err)}
}

// ---------------------------------------------------------------- clients

func config(topic string) *rmq.Config {
	group := "g-" + topic
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func produce(topic string, more ...rmq.ProducerOption) rmq.Producer {
	producer, err := rmq.NewProducer(config(topic), append(more, rmq.WithTopics(topic))...)
	check(err)
	check(producer.Start())
	return producer
}

func simple(topic, expression string) rmq.SimpleConsumer {
	wanted := map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(expression)}
	consumer, err := rmq.NewSimpleConsumer(
		config(topic), rmq.WithSimpleAwaitDuration(5*time.Second), rmq.WithSimpleSubscriptionExpressions(wanted),
	)
	check(err)
	check(consumer.Start())
	return consumer
}

func send(topic string, times int, change func(int, *rmq.Message)) {
	producer := produce(topic)
	defer producer.GracefulStop()
	for n := 0; n < times; n++ {
		made := message(topic, n)
		if change != nil {
			change(n, made)
		}
		receipts, err := producer.Send(context.Background(), made)
		check(err)
		if len(receipts) != 1 || receipts[0].MessageID == "" {
			panic(fmt.Sprintf("receipts of one message: %v", receipts))
		}
	}
}

func message(topic string, n int) *rmq.Message {
	made := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("%s %d", topic, n))}
	made.SetTag([]string{"even", "odd"}[n%2])
	made.SetKeys(fmt.Sprintf("key-%d", n))
	made.AddProperty("number", strconv.Itoa(n))
	made.AddProperty("名", "值")
	return made
}

// receive returns this many messages, or what came until the limit.
func receive(consumer rmq.SimpleConsumer, wanted int, act func(*rmq.MessageView)) (found []*rmq.MessageView) {
	for end := time.Now().Add(limit); len(found) < wanted && time.Now().Before(end); {
		got, err := consumer.Receive(context.Background(), 32, invisible)
		if status, is := rmq.AsErrRpcStatus(err); err != nil && !(is && status.GetCode() == messageNotFound) {
			panic(err)
		}
		for _, one := range got {
			act(one)
			found = append(found, one)
		}
	}
	return found
}

const messageNotFound = 40401

func ack(consumer rmq.SimpleConsumer) func(*rmq.MessageView) {
	return func(m *rmq.MessageView) { check(consumer.Ack(context.Background(), m)) }
}

// listener is what a push consumer calls; each message fails the first `fails` times.
type listener struct {
	mu       sync.Mutex
	times    map[string]int
	attempts map[string]int32
	order    []string
	fails    int
}

// listen starts a push consumer. Its stop would wait for a poll of 20 s: it ends with the program.
func (l *listener) listen(topic string) {
	consumer, err := rmq.NewPushConsumer(
		config(topic), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: l.consume}),
	)
	check(err)
	check(consumer.Start())
}

func (l *listener) consume(m *rmq.MessageView) rmq.ConsumerResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	body := string(m.GetBody())
	l.times[body]++
	l.attempts[body] = m.GetDeliveryAttempt()
	l.order = append(l.order, body)
	if l.times[body] <= l.fails {
		return rmq.FAILURE
	}
	return rmq.SUCCESS
}

func (l *listener) await(condition func() bool) {
	holds := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return condition()
	}
	for end := time.Now().Add(limit); !holds() && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
}

// ---------------------------------------------------------------- helpers

func number(m *rmq.MessageView) int {
	n, err := strconv.Atoi(m.GetProperties()["number"])
	check(err)
	return n
}

func bodies(found []*rmq.MessageView) []string {
	texts := []string{}
	for _, one := range found {
		texts = append(texts, string(one.GetBody()))
	}
	slices.Sort(texts)
	return texts
}

func keys(set map[string]bool) []string {
	found := []string{}
	for key := range set {
		found = append(found, key)
	}
	slices.Sort(found)
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func caught(step func() report) (found report) {
	defer func() {
		if problem := recover(); problem != nil {
			found = report{"error": fmt.Sprint(problem)}
		}
	}()
	return step()
}
