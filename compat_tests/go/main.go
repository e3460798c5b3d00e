// Command secured writes a record and reads it with franz-go or sarama, once for each login that stdin has as JSON.
// It prints the errors as JSON, in the same order; empty texts are successes.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	franzscram "github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/xdg-go/scram"
)

const (
	user     = "alice"
	patience = 60 * time.Second
)

type login struct {
	Client      string `json:"client"`
	Address     string `json:"address"`
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	Secret      string `json:"secret"` // password, or token of OAUTHBEARER
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Topic       string `json:"topic"`
}

func (l login) usesTLS() bool  { return l.Protocol == "SSL" || l.Protocol == "SASL_SSL" }
func (l login) usesSASL() bool { return l.Mechanism != "" }

func (l login) tls() (*tls.Config, error) {
	text, err := os.ReadFile(l.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	config.RootCAs.AppendCertsFromPEM(text)
	if l.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (l login) franzMechanism() sasl.Mechanism {
	switch l.Mechanism {
	case "PLAIN":
		return plain.Auth{User: user, Pass: l.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return franzscram.Auth{User: user, Pass: l.Secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return franzscram.Auth{User: user, Pass: l.Secret}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: l.Secret}.AsMechanism()
	}
}

func (l login) withFranz() error {
	options := []kgo.Opt{
		kgo.SeedBrokers(l.Address), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordRetries(2),
		kgo.RetryTimeout(15 * time.Second), kgo.UnknownTopicRetries(2),
	}
	if l.usesTLS() {
		config, err := l.tls()
		if err != nil {
			return err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if l.usesSASL() {
		options = append(options, kgo.SASL(l.franzMechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := client.Ping(ctx); err != nil { // a producer repeats failed logins until its time is up
		return err
	}
	written, err := client.ProduceSync(ctx, &kgo.Record{Topic: l.Topic, Value: []byte("tea")}).First()
	if err != nil {
		return err
	}
	offset := kgo.NewOffset().At(written.Offset)
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{l.Topic: {0: offset}})
	fetches := client.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		return err
	}
	if read := fetches.Records()[0]; read.Offset != written.Offset || string(read.Value) != "tea" {
		return errors.New("another record was read")
	}
	return nil
}

type scramClient struct {
	hash         func() hash.Hash
	conversation *scram.ClientConversation
}

func (s *scramClient) Begin(name, password, authzID string) error {
	client, err := scram.HashGeneratorFcn(s.hash).NewClient(name, password, authzID)
	if err == nil {
		s.conversation = client.NewConversation()
	}
	return err
}

func (s *scramClient) Step(challenge string) (string, error) { return s.conversation.Step(challenge) }
func (s *scramClient) Done() bool                            { return s.conversation.Done() }

type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func (l login) saramaConfig() (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Metadata.Retry.Max = 1
	config.Producer.Retry.Max = 1
	if l.usesTLS() {
		found, err := l.tls()
		if err != nil {
			return nil, err
		}
		config.Net.TLS.Enable, config.Net.TLS.Config = true, found
	}
	if l.usesSASL() {
		net := &config.Net.SASL
		net.Enable, net.User, net.Password = true, user, l.Secret
		net.Mechanism = sarama.SASLMechanism(l.Mechanism)
		net.TokenProvider = token(l.Secret)
		generator := sha256.New
		if l.Mechanism == "SCRAM-SHA-512" {
			generator = sha512.New
		}
		net.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: generator} }
	}
	return config, nil
}

func (l login) withSarama() error {
	config, err := l.saramaConfig()
	if err != nil {
		return err
	}
	client, err := sarama.NewClient([]string{l.Address}, config)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: l.Topic, Value: sarama.StringEncoder("tea")})
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	partition, err := consumer.ConsumePartition(l.Topic, 0, offset)
	if err != nil {
		return err
	}
	defer partition.Close()
	select {
	case read := <-partition.Messages():
		if read.Offset != offset || string(read.Value) != "tea" {
			return errors.New("another record was read")
		}
		return nil
	case <-time.After(patience):
		return errors.New("the record was not read")
	}
}

func (l login) attempt() string {
	err := l.withFranz
	if l.Client == "sarama" {
		err = l.withSarama
	}
	if failure := err(); failure != nil {
		return fmt.Sprintf("%v", failure)
	}
	return ""
}

func main() {
	var logins []login
	if err := json.NewDecoder(os.Stdin).Decode(&logins); err != nil {
		panic(err)
	}
	errors := make([]string, len(logins))
	var attempts sync.WaitGroup
	for number, each := range logins {
		attempts.Add(1)
		go func() {
			defer attempts.Done()
			errors[number] = each.attempt()
		}()
	}
	attempts.Wait()
	json.NewEncoder(os.Stdout).Encode(errors)
}
