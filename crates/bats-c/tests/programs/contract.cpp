// Tests of the run-time contract of the C++ interface, one function for each rule. Runs all tests, or
// with an argument those whose names contain it.

#include "contract/connecting.h"
#include "contract/endings.h"
#include "contract/listening.h"
#include "contract/messages.h"
#include "contract/surroundings.h"

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(EstablishedThenWritableWithoutACall),
    TEST(MessagesKeepTheirBoundaries),
    TEST(UnreliableModesDeliverAndCountMessages),
    TEST(DatagramsKeepTheirBoundariesAndTheirPort),
    TEST(NothingIsLostBeforeTheCallbackIsSet),
    TEST(NoEventFromInsideSetConnectionCallback),
    TEST(CallbackCanBeSwappedInsideItself),
    TEST(RefusedConnectionsFailAtOnce),
    TEST(TimeoutIsFollowedByFailed),
    TEST(AFailedConnectCanBeRepeated),
    TEST(MissingModesAreRefusedOnTheCallersThread),
    TEST(ListenFailedWhenThePortIsTaken),
    TEST(ASecondListenGivesAlreadyInListen),
    TEST(StopListenFreesThePortAndConnectionsLiveOn),
    TEST(DestroyingAListenerFreesItsPortBeforeItReturns),
    TEST(BufferFullThenWritable),
    TEST(AllDataAckedFollowsAnIdleTimeAndRepeats),
    TEST(StoppingClosesLocallyAndShutsDownThePeer),
    TEST(OnlyTheOwnerCanStopAConnection),
    TEST(ConnectionsOfOtherClassesAreRefused),
    TEST(IdleTimeoutClosesTheConnection),
    TEST(IdealLengthFollowsThePath),
    TEST(NoCallbackAfterTheOwnerIsDestroyed),
    TEST(AnObjectCanBeDestroyedInItsOwnCallback),
    TEST(CallbacksAreDroppedWithTheirConnection),
    TEST(OneObjectMakesSeveralConnectionsInSeveralModes),
    TEST(TheOverloadsWithoutAnAddressUseTheConfiguration),
    TEST(HostNamesAndBothAddressFamiliesWork),
    TEST(EachAddressOfAHostNameIsTried),
    TEST(FilesArriveAsMessages),
    TEST(FilesAreQueuedUpToALimit),
    TEST(NothingIsSentBeforeTheConnectionIsEstablished),
    TEST(SignalCallbackRunsOnAnOrdinaryThread),
    TEST(LogIsWrittenToTheConfiguredPath),
    TEST(IgnoredOptionsAreLogged),
    TEST(UncheckedCertificatesAreLogged),
    TEST(EveryOptionIsAccepted),
    TEST(OnlyAServerWithThePinnedFingerprintIsTrusted),
    TEST(StatisticsCount),
    TEST(APolledContextCallsBackInPollOnly),
    TEST(DestroyingTheContextFirstIsSafe),
    TEST(AnyThreadMayReleaseTheLastReference),
};

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : kTests) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const auto start = std::chrono::steady_clock::now();
    std::printf("%s ... ", test.name);
    std::fflush(stdout);
    test.run();
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("ok (%lld ms)\n",
                static_cast<long long>(
                    std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    ++ran;
  }
  std::printf("%d contract tests passed\n", ran);
  return ran > 0 ? 0 : 1;
}
